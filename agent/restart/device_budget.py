"""Limit how often containers are restarted because of one device. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubemend.agent.restart import counts
from kubemend.common import budgets


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """One device's budget: ``limit`` faults in a row within ``window`` s, each less than ``young`` s after a restart.

    A fault can hit several containers of one device (MIG, MPS): faults within ``same_fault`` seconds are one fault, and
    the restarts for it count once.
    """

    limit: int = 8
    window: float = 3600.0
    young: float = 60.0
    same_fault: float = 2.0

    def closed(self, past: Sequence[counts.Begun], *, now: float, died_at: float) -> budgets.Closed | None:
        """Return the time before which nothing is restarted on the device; None: allowed now. See ``Budget.closed``.

        The fault that caused the last restarts did not follow them. Other containers that it hit are restarted, too.
        """
        waves = self._waves(past)
        if waves and died_at - waves[-1].fault_at <= self.same_fault:
            return None
        failed = self._failed(waves, now=now, died_at=died_at)
        if len(failed) < self.limit:
            return None
        within, lived = budgets.span(self.window), budgets.span(self.young)
        why = f"{len(failed)} restarts in a row within {within} did not last {lived}"
        return budgets.Closed(failed[-self.limit].first_at + self.window, why)

    def left(self, past: Sequence[counts.Begun], *, now: float) -> int:
        """Return how many more restarts may fail to last."""
        return max(0, self.limit - len(self._failed(self._waves(past), now=now, died_at=now)))

    def _failed(self, waves: "Sequence[_Wave]", *, now: float, died_at: float) -> "Sequence[_Wave]":
        """Return the restarts that are followed too soon by the next fault, oldest first."""
        found: list[_Wave] = []
        died = died_at
        for wave in reversed(waves):
            if died - wave.last_at >= self.young or wave.first_at + self.window <= now:
                break
            found.append(wave)
            died = wave.fault_at
        return found[::-1]

    def _waves(self, past: Sequence[counts.Begun]) -> "list[_Wave]":
        waves: list[_Wave] = []
        for each in past:
            if waves and each.fault_at - waves[-1].fault_at <= self.same_fault:
                waves[-1] = _Wave(waves[-1].fault_at, waves[-1].first_at, each.at)
            else:
                waves.append(_Wave(each.fault_at, each.at, each.at))
        return waves


@dataclass(frozen=True, slots=True)
class _Wave:
    """Restarts for one fault: the time of the fault, and of the first and the last of the restarts."""

    fault_at: float
    first_at: float
    last_at: float


ON_DEVICE = DeviceBudget()
"""The budget of every device."""
