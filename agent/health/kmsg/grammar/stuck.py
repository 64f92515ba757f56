"""CPUs that do not schedule (kernel/watchdog.c), and tasks blocked for minutes (kernel/hung_task.c).

::

    watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]
    NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:77]      (before 4.13)
    BUG: soft lockup - CPU#0 stuck for 22s! [swapper/0:0]
    INFO: task jfsmount:136986 blocked for more than 120 seconds.
    INFO: task python3:4242 blocked in I/O wait for more than 245 seconds.      (since 6.17)
"""

import re
from dataclasses import dataclass

_SOFT_LOCKUP = re.compile(
    r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#\d{1,5} stuck for (?P<seconds>\d{1,9})s! "
    r"\[(?P<name>.{0,31}):(?P<pid>\d{1,10})\]",
    re.ASCII,
)
_HUNG = re.compile(
    r"INFO: task (?P<name>.{0,31}):(?P<pid>\d{1,10}) blocked (?:in I/O wait )?"
    r"for more than (?P<seconds>\d{1,9}) seconds",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class StuckLine:
    """A task that is blocked, or that keeps a CPU busy (``soft_lockup``). ``pid`` None is the idle task."""

    soft_lockup: bool
    name: str
    pid: int | None
    seconds: int


def parse(text: str) -> StuckLine | None:
    """Parse a line; None unless it names a stuck task."""
    lockup = _SOFT_LOCKUP.match(text)
    match = lockup or _HUNG.match(text)
    if match is None:
        return None
    return StuckLine(
        soft_lockup=lockup is not None,
        name=match["name"],
        pid=int(match["pid"]) or None,
        seconds=int(match["seconds"]),
    )
