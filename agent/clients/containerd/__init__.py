"""Read from containerd what CRI does not show."""
