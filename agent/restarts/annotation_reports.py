"""Report annotations that are invalid or unknown on their pod: its author must not learn that by the first fault."""

import time
from collections.abc import Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.devices import event_messages
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ContainerRole, PodChange, PodChangeKind, PodRef, PodUid, PodView
from kubemend.agent.restart import options
from kubemend.agent.restart.reasons import Reason
from kubemend.common import contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)


class AnnotationReports:
    """Check each pod of the node when it appears or changes: invalid annotations are a condition, unknown an Event."""

    def __init__(
        self,
        *,
        pods: ports.Pods,
        conditions: ports.Conditions,
        events: ports.EventRecorder,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pods = pods
        self._conditions = conditions
        self._events = events
        self._now = now
        self._invalid: dict[PodUid, str] = {}
        self._unknown: dict[PodUid, str] = {}

    def begin(self) -> None:
        """Check the known pods, and from now on each one that changes."""
        for pod in self._pods.pods().values():
            self._check(pod)
        self._pods.subscribe(self._on_pod)

    def _on_pod(self, change: PodChange) -> None:
        if change.kind is PodChangeKind.GONE:
            self._invalid.pop(change.pod.ref.uid, None)
            self._unknown.pop(change.pod.ref.uid, None)
        else:
            self._check(change.pod)

    def _check(self, pod: PodView) -> None:
        with contained.within(Part.CONDITION, pod.ref):
            if (invalid := _invalid(pod)) != self._invalid.get(pod.ref.uid, _shown(pod)):
                self._invalid[pod.ref.uid] = invalid
                self._report_invalid(pod.ref, invalid)
            if (unknown := options.unknown(pod.annotations)) != self._unknown.get(pod.ref.uid, ""):
                self._unknown[pod.ref.uid] = unknown
                self._report_unknown(pod.ref, unknown)

    def _report_invalid(self, pod: PodRef, reason: str) -> None:
        log.warning("annotations.refused", pod=str(pod), reason=reason)
        condition = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.UNKNOWN, "NoRestart")
        if reason:
            condition = Condition(
                conditions.IN_PLACE_RESTART,
                ConditionStatus.FALSE,
                Reason.BAD_ANNOTATION.value,
                f"nothing is restarted or watched: {reason}",
            )
        self._conditions.set(pod, condition)

    def _report_unknown(self, pod: PodRef, message: str) -> None:
        if message:
            log.warning("annotations.unknown", pod=str(pod), reason=message)
            self._events.record(event_messages.of_unknown_annotations(pod, message, now=self._now()))


def _invalid(pod: PodView) -> str:
    """Return what is invalid; empty: nothing, or the annotations of a pod that is too large to keep are not known."""
    if not pod.containers:
        return ""
    try:
        named = options.parse(pod.annotations).containers
    except options.BadAnnotationError as error:
        return str(error)
    lasting = {spec.name for spec in pod.containers if spec.role is not ContainerRole.INIT}
    if not (wrong := sorted(named - lasting)):
        return ""
    return (
        f"annotation {options.CONTAINERS} names {', '.join(wrong)}: neither a main container nor a sidecar of the pod"
    )


def _shown(pod: PodView) -> str:
    """Return what a previous agent has reported as invalid; empty: nothing, or a restart has been reported since."""
    found = (each for each in pod.conditions if pod.containers and each.type == conditions.IN_PLACE_RESTART)
    return next((each.message for each in found if each.reason == Reason.BAD_ANNOTATION.value), "")
