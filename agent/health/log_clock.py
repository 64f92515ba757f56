"""How far the clock of the kernel log has drifted from the one by which processes are told. Pure.

Records are stamped with ``local_clock()``, which runs at the processor's rate and which nobody corrects: weeks of
uptime make seconds of it, on some machines hours. How late it is shows in a record that is read right when it is
printed: it cannot have been printed after it was read, and hardly long before.
"""

from collections import deque
from typing import Final

_FEW: Final = 30.0
_MANY: Final = 2.0
"""Seconds that a clock must seem to be late before that is believed, of a record or of eight in a row. A reader that
was kept from reading is late, too, and a fault must not be taken to be later than it was: what has replaced the
container meanwhile would be restarted for it."""

_ENOUGH: Final = 8
_BEFORE: Final = 1.0
"""Seconds by which a record may seem to come from the future: two clocks are not read at one moment."""


class LogClock:
    """Learns from records that were read as they were printed. ``late`` is in seconds, negative where it is ahead."""

    def __init__(self) -> None:
        self.late = 0.0
        self._seen: deque[float] = deque(maxlen=_ENOUGH)

    def learn(self, *, stamp: float, now: float, live: bool) -> None:
        """Take in a record: its stamp, and CLOCK_MONOTONIC when it was read, both in seconds.

        ``live``: it was waited for; otherwise it may be as old as it likes, and only says how far ahead the clock is.
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
