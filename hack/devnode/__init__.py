"""A development node: a private containerd and the stand-ins around it, everything under one root directory."""
