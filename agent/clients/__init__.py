"""Access other programs' sockets and files: the container runtime, kubelet's pod-resources API, the journal."""
