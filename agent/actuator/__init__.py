"""Acts on containers through the runtime, and leaves the host's files as kubelet would."""
