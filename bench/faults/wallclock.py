"""Give a process a wall clock of its own, set ahead and back while it runs, as an operator or NTP sets a node's.

A library in front of libc (``wallclock.c``): a time namespace moves no wall clock, and the machine's own must not be
changed. Only the process's own queries are moved, not the times that containerd and the kernel record (starts of
containers, times of files): to the process they appear unchanged by the jump. On a real node all clocks agree again
after a jump, which is the easier case.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from hack import compiler

_VARIABLE = "KUBEMEND_DEV_CLOCK"
_SIZE = 8


class WallClock:
    """Control one clock. Processes that are started with ``environment`` use it."""

    def __init__(self, library: Path, file: Path, mapped: mmap.mmap) -> None:
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), _VARIABLE: str(file)}
        self._mapped = mapped

    @classmethod
    @contextlib.contextmanager
    def made(cls, directory: Path) -> Iterator[Self]:
        """Compile the library into the directory; the clock shows the machine's time.

        Raises the errors of ``compiler.build``.
        """
        source, file = Path(__file__).with_suffix(".c"), directory / "wallclock"
        library = compiler.build(source, directory / "wallclock.so", "-std=gnu11", *compiler.LIBRARY)
        file.write_bytes(bytes(_SIZE))
        descriptor = os.open(file, os.O_RDWR)
        try:
            mapped = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        with mapped:
            yield cls(library, file, mapped)

    def set(self, *, ahead: float) -> None:
        """Set it ``ahead`` seconds ahead of the machine's time; negative: behind."""
        self._mapped[:] = int(ahead * 1e9).to_bytes(_SIZE, "little", signed=True)
