"""The real pynvml of this process on a fake library of its own, and a count of the calls into it."""

import contextlib
import ctypes
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from kubemend.agent.health.gpu.readings import Vitals
from kubemend.agent.sources.nvml import reader
from kubemend.agent.sources.nvml.calls import Calls, Value
from kubemend.agent.sources.nvml.protocol import Slot, Snapshot


class Counting(Calls):
    """Counts the calls into NVML by their names."""

    def __init__(self) -> None:
        super().__init__(deadline=3600.0, announce=lambda _: None, came_back=lambda: None)
        self.made: Counter[str] = Counter()

    @contextlib.contextmanager
    def during(self, name: str, *, wait: float = 0.0) -> Iterator[None]:
        """Count the call, then mark it as in flight."""
        self.made[name] += 1
        with super().during(name, wait=wait):
            yield


class Nvml:
    """A reader on the fake, and the calls that it made."""

    def __init__(self) -> None:
        self.calls = Counting()
        self.reader = reader.Reader(pynvml=pynvml, calls=self.calls)
        assert isinstance(self.reader.init(), Value)

    def poll(self, *, full: bool = True) -> Snapshot:
        """Poll all GPUs."""
        polled = self.reader.snapshot(full=full)
        assert isinstance(polled, Value)
        snapshot: Snapshot = polled.value
        return snapshot

    def slot(self, *, full: bool = True) -> Slot:
        """Poll, and return the slot of the first GPU."""
        return self.poll(full=full).slots[0]

    def vitals(self, *, full: bool = True) -> Vitals:
        """Poll, and return the vitals of the first GPU."""
        vitals = self.slot(full=full).vitals
        assert vitals is not None
        return vitals


def use(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a library in this process's pynvml. A file is loaded only once: give each test its own."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
