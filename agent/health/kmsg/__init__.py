"""Parse records of the kernel log into findings. Pure."""
