"""Build the messages of Kubernetes Events. Pure, except that it remembers the recorded messages."""

from collections.abc import Collection
from typing import Final

from kubemend.agent.health.state import evidence
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.event_messages import EventMessage, Level
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import ContainerRef, PodRef
from kubemend.agent.restart import admission

DEVICE_UNHEALTHY = "DeviceUnhealthy"
DEVICE_DEGRADED = "DeviceDegraded"
DEVICE_HEALTHY = "DeviceHealthy"
RESTARTED = "RestartedInPlace"
RESTART_FAILED = "InPlaceRestartFailed"
RESTART_REFUSED = "InPlaceRestartRefused"
RESTART_POSTPONED = "InPlaceRestartPostponed"
OOM_KILLED = "OOMKilled"
UNKNOWN_ANNOTATION = "UnknownAnnotation"

_NODE: Final = None  # the object of a message about the node
_REASON = {Health.UNHEALTHY: DEVICE_UNHEALTHY, Health.DEGRADED: DEVICE_DEGRADED, Health.HEALTHY: DEVICE_HEALTHY}


class DeviceEventMessages:
    """Turn changes of verdicts into messages: one for the node, and one for each pod that holds the device.

    ``Unknown`` is not reported: it is neither a fault nor the end of one. The recovery of a device is reported only to
    objects on which its fault was reported.
    """

    def __init__(self) -> None:
        self._recorded: dict[str, dict[PodRef | None, tuple[Health, str]]] = {}

    @property
    def open(self) -> frozenset[str]:
        """Return the devices whose fault was reported, and whose recovery was not."""
        return frozenset(self._recorded)

    def of(self, verdict: Verdict, *, holders: Collection[PodRef] | None, now: float) -> list[EventMessage]:
        """Return the messages to record for a device now.

        ``holders`` are all pods that hold it; None if they are unknown: then no pod gets a new fault. ``now`` is Unix
        time.
        """
        recorded = self._recorded.get(verdict.device, {})
        if holders is not None:
            recorded = {about: state for about, state in recorded.items() if about is _NODE or about in holders}
        match verdict.health:
            case Health.UNKNOWN:
                due: list[PodRef | None] = []
            case Health.HEALTHY:
                due, recorded = list(recorded), {}
            case _:
                state = verdict.health, verdict.reason
                due = [about for about in (_NODE, *sorted(holders or ())) if recorded.get(about) != state]
                recorded |= dict.fromkeys(due, state)
        if recorded:
            self._recorded[verdict.device] = recorded
        else:
            self._recorded.pop(verdict.device, None)
        return [_of_device(verdict, about=about, now=now) for about in due]


def _of_device(verdict: Verdict, *, about: PodRef | None, now: float) -> EventMessage:
    healthy = verdict.health is Health.HEALTHY
    what = "healthy again" if healthy else f"{verdict.message}; action {verdict.action.value}"
    return EventMessage(
        about=about,
        reason=_REASON[verdict.health],
        message=f"{verdict.device}: {what}",
        at=verdict.since or now,
        level=Level.NORMAL if healthy else Level.WARNING,
        subject=verdict.device if healthy else f"{verdict.device} {verdict.reason}",
    )


def of_restart(target: ContainerRef, condition: Condition, *, now: float) -> EventMessage:
    """Return the message about a restart; ``condition`` is the settled one of ``pod_conditions.for_restart``."""
    done = condition.status is ConditionStatus.TRUE
    return EventMessage(
        about=target.pod,
        reason=RESTARTED if done else RESTART_FAILED,
        message=condition.message,
        at=now,
        level=Level.NORMAL if done else Level.WARNING,
        subject=f"{target.name} {condition.reason}",
        container=target.name,
    )


def of_decision(
    target: ContainerRef, decision: admission.Decision, condition: Condition, *, now: float
) -> EventMessage | None:
    """Return the message about a restart that is refused or on hold; None if it is admitted.

    ``condition`` is the one of ``pod_conditions.for_refusal``.
    """
    if decision.verb is admission.Verb.ACT:
        return None
    return EventMessage(
        about=target.pod,
        reason=RESTART_POSTPONED if decision.verb is admission.Verb.POSTPONE else RESTART_REFUSED,
        message=f"{decision.reason.value}: {condition.message}",
        at=now,
        subject=f"{target.name} {decision.reason.value}",
        container=target.name,
    )


def of_oom_kill(finding: Finding, *, pod: PodRef | None, container: str = "") -> EventMessage | None:
    """Return the message about an OOM kill in a pod; None for any other finding.

    ``pod`` and ``container`` are the owner of the process, as far as known. The kernel writes several lines for one
    kill; only the one that names the pod counts. Kills from before an agent first ran on this node are not reported.
    """
    if finding.kind is not FindingKind.OOM_KILL or pod is None:
        return None
    if evidence.POD_UID not in finding.evidence or evidence.LOOK_BACK in finding.evidence:
        return None
    of_node = finding.evidence.get(evidence.OOM_SCOPE) == "node"
    whose = "the node ran out of memory" if of_node else "a memory limit of the pod or the container was reached"
    return EventMessage(
        about=pod,
        reason=OOM_KILLED,
        message=f"the kernel killed {finding.process_name or 'a process'} (pid {finding.pid}): {whose}",
        at=finding.observed_at,
        subject=container,
        container=container,
    )


def of_unknown_annotations(pod: PodRef, message: str, *, now: float) -> EventMessage:
    """Return the message about annotations that have no effect (``agent.restart.options.unknown``)."""
    return EventMessage(about=pod, reason=UNKNOWN_ANNOTATION, message=message, at=now)
