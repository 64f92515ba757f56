"""Provide a file system that never answers (``bench.faults.hanging_fs``), where this machine allows one: else skip."""

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults import hanging_fs
from bench.faults.hanging_fs import HangingFs
from bench.faults.reporting import NotTriedError


@contextlib.contextmanager
def mounted(at: Path) -> Iterator[HangingFs]:
    """Mount one; at the end all waiting calls get an error."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hanging_fs.mounted(at))
        except NotTriedError as error:
            pytest.skip(str(error))
        yield made


def has_ended(pidfd: int, *, within: float) -> bool:
    """Return whether a process ends within the given seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within * 1000))
