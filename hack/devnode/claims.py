"""One owner per dev node: a lock that the kernel drops when its owner ends, however it ends.

Without it, a second run with the same name would take a living node for the remains of a crash and remove it.
"""

import fcntl
import pathlib
from typing import IO

from hack.devnode import layout


class NodeInUseError(RuntimeError):
    """Another program runs this dev node. The message is one line: which, where, and the mend."""


class Claim:
    """The right to run and to remove one dev node."""

    def __init__(self, node: layout.NodeLayout) -> None:
        self._node = node
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take it, or raise NodeInUseError at once when somebody holds it. To hold it already is fine."""
        if self._file is not None:
            return
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise NodeInUseError(
                f"dev node {self._node.name} ({self._node.root}) is in use; stop it or take another name"
            ) from None
        self._file = file

    def give_back(self) -> None:
        """Let others take it. The lock file stays: to remove it would let two programs lock two different files."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self) -> pathlib.Path:
        # Beside the root, which is removed and made anew while the claim is held.
        return self._node.root.with_name(f".{self._node.root.name}.lock")
