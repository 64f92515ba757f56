"""Act on containers through the runtime, and keep the host's files as kubelet would."""
