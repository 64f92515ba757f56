"""Define how much of each fault is tried."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    """``away`` is in seconds, the others are counts. It is long enough for a member to fail without a leader.

    ``whole``: every combination is tried, not a few. ``judges_time``: slowness counts as lost; not valid on a machine
    with other load.
    """

    away: float = 300.0
    changes: int = 10_000
    connections: int = 2_000
    log_lines: int = 20_000
    strangers: int = 20_000
    whole: bool = True
    judges_time: bool = True


SHORT: Final = Scale(
    away=60.0, changes=400, connections=100, log_lines=2_000, strangers=100, whole=False, judges_time=False
)
