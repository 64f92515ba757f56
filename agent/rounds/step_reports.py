"""Report a member's phases in a round, with the seconds that each step took."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import structlog

from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.rounds import Order, StepResult
from kubemend.agent.model.workloads import PodRef
from kubemend.common.coordination import StepPhase

log = structlog.get_logger(__name__)

NOT_STARTED = "NotStarted"
"""The reason of STOPPED for a member whose old containers are dead, and whose successor has not started yet."""


class EndReason(enum.Enum):
    """Reason for the end of a hold."""

    RELEASED = "released"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    SUPERSEDED = "superseded"
    DELETED = "the pod is being deleted, or ended"


NEVER_RUN = (EndReason.SUPERSEDED, EndReason.DELETED)

PHASE_AFTER_RELEASE = {
    EndReason.RELEASED: (StepPhase.RUNNING, ""),
    EndReason.ABORTED: (StepPhase.SELF_RELEASED, "Aborted"),
    EndReason.TIMED_OUT: (StepPhase.SELF_RELEASED, ""),
}
"""The phase and reason that a released member reports. RUNNING follows a release only: the controller takes it as
proof that every old process is dead."""


class StepReports:
    """The newest result of one member, and the seconds of its steps.

    ``held_since`` is the loop's time from which the member is held; None before, and after the hold has been counted.
    """

    def __init__(
        self,
        order: Order,
        *,
        pod: PodRef,
        holding: HoldSet,
        before_report: Callable[[], None],
        on_result: Callable[[StepResult], None],
        metrics: Metrics,
        earlier: StepResult | None = None,
    ) -> None:
        """``on_result`` receives each result, after ``before_report`` has written it down."""
        first = StepResult(order.round, pod, StepPhase.STOPPING, attempt=order.attempt)
        self.newest = earlier if earlier is not None else first
        self.seconds: dict[str, float] = {}
        self.held_since: float | None = None
        self._first = first
        self._holding = holding
        self._before_report = before_report
        self._on_result = on_result
        self._metrics = metrics

    def report(self, phase: StepPhase, *, reason: str, detail: str) -> None:
        """Record the member's phase and report it."""
        self.newest = replace(
            self._first,
            phase=phase,
            reason=reason,
            detail=detail,
            seconds=MappingProxyType(dict(self.seconds)),
            unheld_seconds=self._holding.unheld_seconds,
        )
        self._log()
        self._metrics.round_members.labels(phase.value).inc()
        self._before_report()
        self._on_result(self.newest)

    def report_progress(self, reason: str, *, detail: str = "") -> None:
        """Report the current step of the same phase, which is not recorded."""
        self._on_result(replace(self.newest, reason=reason, detail=detail))

    def update_seconds(self) -> None:
        """Add the seconds to the newest result without a report."""
        self.newest = replace(self.newest, seconds=MappingProxyType(dict(self.seconds)))

    def observe_stop(self) -> None:
        """Count the phases of the stop in the metrics."""
        for phase in self.seconds.keys() - {"held"}:  # ``count_hold`` counts that
            self._metrics.round_phase.labels(phase).observe(self.seconds[phase])
        self._metrics.round_slip.observe(self._holding.unheld_seconds)

    def count_hold(self) -> None:
        """Count the time since it was held as the phase ``held``, once."""
        if self.held_since is None:
            return
        self.seconds["held"] = asyncio.get_running_loop().time() - self.held_since
        self.held_since = None
        self._metrics.round_phase.labels("held").observe(self.seconds["held"])

    def _log(self) -> None:
        newest = self.newest
        write = log.debug if newest.phase is StepPhase.STOPPED else log.info  # the final phase has its times as well
        write(
            "round.step_result",
            round=newest.round,
            pod=str(newest.pod),
            phase=newest.phase.value,
            reason=newest.reason,
            detail=newest.detail,
            milliseconds={name: round(seconds * 1000, 1) for name, seconds in newest.seconds.items()},
            unheld_milliseconds=round(newest.unheld_seconds * 1000, 1),
            foreign=self._holding.foreign,
        )
