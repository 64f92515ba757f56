"""Ensure one owner per dev node: a lock that the kernel drops when its owner ends, in any way.

Without it, a second run with the same name would take a living node for the remains of a crash and remove it.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator
from typing import IO

from hack.devnode import layout


class NodeInUseError(RuntimeError):
    """Another program runs this dev node. The message is one line: which, where, and the hint."""


class Claim:
    """The right to run and to remove one dev node."""

    def __init__(self, node: layout.NodeLayout) -> None:
        self._node = node
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take the claim, or raise NodeInUseError at once when another program holds it. Repeating it is allowed."""
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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for the length of the block. Raises NodeInUseError."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Release the claim. The lock file stays: without it, two programs could lock two different files."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self) -> pathlib.Path:
        # Next to the root, which is removed and recreated while the claim is held.
        return self._node.root.with_name(f".{self._node.root.name}.lock")
