"""The node lock: the one process that may act on frozen containers of this node, for as long as it lives.

It is a lock on the state directory (flock(2)): the kernel releases it however the process ends, and it needs no disk
space.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def acquire(state_dir: Path) -> Iterator[bool]:
    """Take the lock for the length of the block.

    False where another process has it, or the directory cannot be opened.
    """
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
