"""Report decisions about restarts: log, metrics, pod conditions, Events, and suspicions against devices."""

from collections.abc import Callable
from dataclasses import replace

import structlog

from kubemend.agent.actuator import progress
from kubemend.agent.devices import event_messages, pod_conditions
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.requests import Request
from kubemend.common import budgets, contained
from kubemend.common.coordination import FaultKind

log = structlog.get_logger(__name__)

_KUBELETS = frozenset(
    {
        Reason.ALREADY_REPLACED,
        Reason.CAUSE_GONE,
        Reason.CONTAINER_UNKNOWN,
        Reason.POD_DELETING,
        Reason.POD_NOT_RUNNING,
        Reason.SANDBOX_NOT_READY,
    }
)
"""After an exit these mean that kubelet was faster, or ends the pod: kubelet's conditions and Events report it.

Unless the pod's condition still says that the restart waits.
"""


class DecisionReports:
    """Report the decisions about requests."""

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        metrics: Metrics,
        now: Callable[[], float],
        suspects: SuspicionTracker | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._metrics = metrics
        self._now = now
        self._suspects = suspects
        self._on_hold: set[ContainerRef] = set()  # of which the condition says so

    def decided(
        self, request: Request, decision: admission.Decision, *, restart: str | None = None, answered: bool = False
    ) -> None:
        """Log and count the decision, and publish a condition unless the pod never opted in.

        ``answered``: a restart by kubemend has already reported the outcome for this cause.
        """
        cause = request.cause()
        request.followed.notify(progress.Decided(decision))
        self._metrics.decisions.labels(decision.verb.value, decision.reason.value).inc()
        carried_out = request.round_hooks is not None and decision.verb is admission.Verb.ACT  # its end is logged
        write = log.debug if carried_out else log.info
        write(
            "restart.decided",
            container=str(request.target),
            pod_uid=request.target.pod.uid,
            cause=cause.code,
            verb=decision.verb.value,
            reason=decision.reason.value,
            detail=decision.detail,
            strategy=decision.strategy.value if decision.strategy is not None else None,
            **({"restart": restart} if restart is not None else {}),
        )
        if decision.verb is admission.Verb.ACT:
            self._on_hold.discard(request.target)
        else:
            self._publish(request, decision, cause=cause, answered=answered)
        if decision.reason is Reason.DEVICE_BUDGET_SPENT and self._suspects is not None:
            assert cause.device is not None
            self._suspects.mark_suspect(FindingKind.RESTARTS_INEFFECTIVE, device=cause.device, text=decision.detail)

    def gave_up(self, request: Request, decision: admission.Decision, *, after: float) -> None:
        """Publish that a request has been on hold for too long, ``after`` seconds, and is not decided on again."""
        log.warning("restart.timed_out", container=str(request.target), reason=decision.reason.value)
        detail = f"{decision.detail}; given up after {budgets.span(after)}"
        given_up = replace(decision, verb=admission.Verb.REFUSE, detail=detail)
        self._publish(request, given_up, cause=request.cause(), answered=False)

    def _publish(
        self, request: Request, decision: admission.Decision, *, cause: admission.Cause, answered: bool
    ) -> None:
        """Set the pod's condition and record an Event, unless kubelet or a restart reports the same."""
        waits = decision.verb is admission.Verb.POSTPONE
        silent = {Reason.NOT_OPTED_IN, Reason.OWN_POD}
        if request.kind is FaultKind.EXIT and (waits or request.target not in self._on_hold):
            silent |= _KUBELETS
        if answered:
            silent.add(Reason.ALREADY_REPLACED)
        if not waits:
            self._on_hold.discard(request.target)
        if decision.reason in silent:
            return
        if waits:
            self._on_hold.add(request.target)
        condition = pod_conditions.for_refusal(container=request.target.name, cause=cause, decision=decision)
        self._dependencies.reporter.set(request.target.pod, condition)
        message = event_messages.of_decision(request.target, decision, condition, now=self._now())
        if message is not None:
            self._dependencies.event_recorder.record(message)

    def internal_error(self, request: Request, error: Exception) -> None:
        """Publish on the pod that the restart was refused. An unreadable cause is replaced by "Unknown"."""
        cause = admission.Cause(code="Unknown", message="a fault", happened_at=self._now())
        with contained.within(contained.Part.RESTART, request.target):
            cause = request.cause()
        refusal = admission.Decision(admission.Verb.REFUSE, Reason.INTERNAL, contained.describe(error))
        self.decided(replace(request, cause=lambda: cause), refusal)
