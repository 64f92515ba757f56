"""Unix sockets that this process serves."""

from pathlib import Path


def clear_way(socket: Path) -> None:
    """Make the socket's directory and remove what a killed predecessor left behind."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
