"""Which NVML calls are in flight, and since when: how a worker knows that the driver hangs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Call:
    name: str
    due: float  # time.monotonic() from when on it counts as stuck
    announced: bool = False


class Calls:
    """The calls in flight, one per thread at most.

    A call is stuck when it takes longer than ``deadline`` seconds. ``announce`` is called with its name, or with
    None while nothing is stuck, by every ``check`` and when a stuck call has come back after all; then
    ``came_back`` is called too.
    """

    def __init__(
        self, *, deadline: float, announce: Callable[[str | None], None], came_back: Callable[[], None]
    ) -> None:
        self._deadline = deadline
        self._announce = announce
        self._came_back = came_back
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}

    @contextlib.contextmanager
    def during(self, name: str, *, wait: float = 0.0) -> Iterator[None]:
        """Mark a call as in flight; ``wait`` is how long it is allowed to wait by its own arguments (seconds)."""
        call = _Call(name=name, due=time.monotonic() + self._deadline + wait)
        with self._lock:
            self._calls[threading.get_ident()] = call
        try:
            yield
        finally:
            with self._lock:
                del self._calls[threading.get_ident()]
                announced = call.announced
            if announced:
                self._announce(self._stuck())
                self._came_back()

    def check(self) -> None:
        """Announce what is stuck now, or that nothing is."""
        self._announce(self._stuck())

    def until_due(self) -> float:
        """Return the seconds until the next call in flight becomes stuck (infinity when none can)."""
        with self._lock:
            dues = [call.due for call in self._calls.values() if not call.announced]
        return max(0.0, min(dues) - time.monotonic()) if dues else float("inf")

    def _stuck(self) -> str | None:
        now = time.monotonic()
        with self._lock:
            late = [call for call in self._calls.values() if call.due <= now]
            for call in late:
                call.announced = True
        return min(late, key=lambda call: call.due).name if late else None
