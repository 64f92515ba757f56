"""Decide when a lasting fault begins and ends.

It begins immediately or after a delay, and ends only on lasting evidence.

Pure. Between two checks the last observed state is assumed to continue, so that the frequency of checks only affects
how soon a change is noticed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FaultCheck:
    """The result of one check for a fault. ``holds`` is None for unknown, which neither begins nor ends anything.

    ``since``, in the seconds of ``now``: the time from which the fault counts as holding (a future time delays it), or
    since which it has been absent; None means from this check on.
    """

    holds: bool | None
    text: str = ""
    since: float | None = None


UNKNOWN = FaultCheck(None)
CLEAN = FaultCheck(holds=False)


@dataclass(frozen=True, slots=True)
class FaultState:
    """The state of a fault.

    ``emitted``: whether it was last emitted as holding; None at first, when only a previous agent may have emitted it.
    """

    emitted: bool | None = None
    text: str = ""
    begins_at: float | None = None
    ends_at: float | None = None

    @property
    def due(self) -> float | None:
        """The time at which the state changes without another check; None: never."""
        if self.begins_at is not None and self.emitted is not True:
            return self.begins_at
        return self.ends_at if self.emitted is not False else None


def settled(fault_state: FaultState, *, now: float) -> FaultState:
    """Return the state after time has passed."""
    if fault_state.begins_at is not None and now >= fault_state.begins_at:
        return replace(fault_state, emitted=True)
    if fault_state.ends_at is not None and now >= fault_state.ends_at:
        return replace(fault_state, emitted=False)
    return fault_state


def after(fault_state: FaultState, check: FaultCheck, *, now: float, clean_for: float) -> FaultState:
    """Return the state after a check; the fault must have been absent for ``clean_for`` seconds to end."""
    before = settled(fault_state, now=now)
    if check.holds is None:
        return replace(before, begins_at=None, ends_at=None)
    if check.holds:
        begins = check.since if check.since is not None else now
        begins = min(begins, before.begins_at) if before.begins_at is not None else begins
        return settled(replace(before, text=check.text, begins_at=begins, ends_at=None), now=now)
    if check.since is not None:
        ends = check.since + clean_for
    else:
        ends = before.ends_at if before.ends_at is not None else now + clean_for
    return settled(replace(before, begins_at=None, ends_at=ends), now=now)


def earliest(times: Iterable[float | None]) -> float | None:
    """Return the earliest of these times, or None where there is none."""
    return min((time for time in times if time is not None), default=None)
