"""Who is in charge of what stands still on this node: one process, for as long as it lives.

It is a lock on the state directory (flock(2)): the kernel gives it back whatever ends that process, and it needs no
room on the disk.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def taken(state_dir: Path) -> Iterator[bool]:
    """Take charge for the length of the block; False where somebody else has it, or the directory cannot be opened."""
    try:
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _locked(directory)
    finally:
        os.close(directory)


def _locked(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
