"""A development node: a private containerd, API server and kubelet, everything under one root directory."""
