"""Ports of this machine's own, for servers that nobody outside reaches."""

import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
