"""Whether a fault that lasts is to be told: it may begin at once or after a while, and ends only on lasting evidence.

Pure. Between two sights what was seen last is taken to go on, so that asking more or less often changes nothing but
how soon a change is noticed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look told of a fault. ``holds`` is None for "could not tell", which neither begins nor ends anything.

    ``since``, in the seconds of ``now``: from when it counts as holding (a moment to come gives it time to pass), or
    since when it has been clean; None is from this look on.
    """

    holds: bool | None
    text: str = ""
    since: float | None = None


UNKNOWN = Sight(None)
CLEAN = Sight(holds=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a fault stands. ``told`` is None at first: an earlier agent may have told of it, and only it."""

    told: bool | None = None
    text: str = ""
    begins_at: float | None = None
    ends_at: float | None = None

    @property
    def due(self) -> float | None:
        """When it changes by itself unless something else is seen before; None: not by itself."""
        if self.begins_at is not None and self.told is not True:
            return self.begins_at
        return self.ends_at if self.told is not False else None


def settled(standing: Standing, *, now: float) -> Standing:
    """Return the standing after time has passed."""
    if standing.begins_at is not None and now >= standing.begins_at:
        return replace(standing, told=True)
    if standing.ends_at is not None and now >= standing.ends_at:
        return replace(standing, told=False)
    return standing


def after(standing: Standing, sight: Sight, *, now: float, clean_for: float) -> Standing:
    """Return the standing after a look; it must have been clean for ``clean_for`` seconds to end."""
    before = settled(standing, now=now)
    if sight.holds is None:
        return replace(before, begins_at=None, ends_at=None)
    if sight.holds:
        begins = sight.since if sight.since is not None else now
        begins = min(begins, before.begins_at) if before.begins_at is not None else begins
        return settled(replace(before, text=sight.text, begins_at=begins, ends_at=None), now=now)
    if sight.since is not None:
        ends = sight.since + clean_for
    else:
        ends = before.ends_at if before.ends_at is not None else now + clean_for
    return settled(replace(before, begins_at=None, ends_at=ends), now=now)


def earliest(times: Iterable[float | None]) -> float | None:
    """Return the earliest of these times, or None where there is none."""
    return min((time for time in times if time is not None), default=None)
