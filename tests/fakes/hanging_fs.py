"""A file system that never answers (``bench.faults.hanging_fs``), where this machine allows one: else it is a skip."""

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults import hanging_fs
from bench.faults.hanging_fs import HangingFs
from bench.faults.telling import NotTriedError


@contextlib.contextmanager
def mounted(at: Path) -> Iterator[HangingFs]:
    """Mount one; in the end everybody who waits for it gets an error."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hanging_fs.mounted(at))
        except NotTriedError as error:
            pytest.skip(str(error))
        yield made


def has_ended(pidfd: int, *, within: float) -> bool:
    """Whether a process ends within so many seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within * 1000))
