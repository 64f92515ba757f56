"""Prepare unix sockets that a process of the dev node serves."""

from pathlib import Path


def clear_way(socket: Path) -> None:
    """Create the socket's directory and remove the socket file of a process that was killed."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
