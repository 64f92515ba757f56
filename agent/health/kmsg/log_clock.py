"""Measure the drift of the kernel log's clock against CLOCK_BOOTTIME, which process start times use. Pure.

Records are stamped with ``local_clock()``, which runs at the processor's rate, is never corrected, and stops in
suspend: over weeks of uptime it drifts by seconds, on some machines by hours. A record that is read as it is printed
shows the lag: it cannot have been printed after it was read, and hardly long before.
"""

from collections import deque
from typing import Final

_FEW: Final = 30.0
_MANY: Final = 2.0
"""Seconds of apparent lag before it is accepted: ``_FEW`` for a single record, ``_MANY`` for eight in a row.

A reader that was delayed also makes the clock look late. A fault must not be dated later than it was, because a
container that replaced the faulty one in the meantime would then be restarted for it.
"""

_ENOUGH: Final = 8
_BEFORE: Final = 1.0
"""Seconds by which a record may seem to come from the future: the two clocks are not read at the same moment."""


class LogClock:
    """Learns from records that were read as they were printed. ``late`` is in seconds, negative where it is ahead."""

    def __init__(self) -> None:
        self.late = 0.0
        self._seen: deque[float] = deque(maxlen=_ENOUGH)

    def learn(self, *, stamp: float, now: float, live: bool) -> None:
        """Process a record: its stamp, and CLOCK_BOOTTIME when it was read, both in seconds.

        ``live``: the reader waited for it. Otherwise it may be of any age, and only shows how far ahead the clock is.
        """
        at_most = now - stamp
        if at_most < self.late - _BEFORE:
            self.late = at_most
            self._seen.clear()
        if not live:
            return
        self._seen.append(at_most)
        least = min(self._seen)
        if least - self.late > (_MANY if len(self._seen) == _ENOUGH else _FEW):
            self.late = least
