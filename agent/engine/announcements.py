"""What is told in Kubernetes Events, and in which words. Pure, but for remembering what was told."""

from collections.abc import Collection
from typing import Final

from agent.health import evidence
from agent.model.announcements import Announcement, Level
from agent.model.conditions import Condition, ConditionStatus
from agent.model.findings import Finding, FindingKind
from agent.model.verdicts import Health, Verdict
from agent.model.workloads import ContainerRef, PodRef
from agent.restart import admission

DEVICE_UNHEALTHY = "DeviceUnhealthy"
DEVICE_DEGRADED = "DeviceDegraded"
DEVICE_HEALTHY = "DeviceHealthy"
RESTARTED = "RestartedInPlace"
RESTART_FAILED = "InPlaceRestartFailed"
RESTART_REFUSED = "InPlaceRestartRefused"
RESTART_HELD = "InPlaceRestartHeld"
OOM_KILLED = "OOMKilled"

_NODE: Final = None  # what an announcement of the node is about
_REASON = {Health.UNHEALTHY: DEVICE_UNHEALTHY, Health.DEGRADED: DEVICE_DEGRADED, Health.HEALTHY: DEVICE_HEALTHY}


class DeviceAnnouncements:
    """Turns verdicts into announcements, one of the node and one of each pod that holds the device, when they change.

    ``Unknown`` is no news: it is neither a fault nor the end of one. That a device is healthy is told only to those
    who were told that it was not.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[PodRef | None, tuple[Health, str]]] = {}

    @property
    def open(self) -> frozenset[str]:
        """Return the devices of which a fault has been told, and its end not yet."""
        return frozenset(self._told)

    def of(self, verdict: Verdict, *, holders: Collection[PodRef] | None, now: float) -> list[Announcement]:
        """Return what is to be told of a device now.

        ``holders`` are all pods that hold it, None when that could not be told: no pod then is told of a fault.
        ``now`` is Unix time.
        """
        told = self._told.get(verdict.device, {})
        if holders is not None:
            told = {about: said for about, said in told.items() if about is _NODE or about in holders}
        match verdict.health:
            case Health.UNKNOWN:
                new: list[PodRef | None] = []
            case Health.HEALTHY:
                new, told = list(told), {}
            case _:
                said = verdict.health, verdict.reason
                new = [about for about in (_NODE, *sorted(holders or ())) if told.get(about) != said]
                told |= dict.fromkeys(new, said)
        if told:
            self._told[verdict.device] = told
        else:
            self._told.pop(verdict.device, None)
        return [_of_device(verdict, about=about, now=now) for about in new]


def _of_device(verdict: Verdict, *, about: PodRef | None, now: float) -> Announcement:
    healthy = verdict.health is Health.HEALTHY
    what = "healthy again" if healthy else f"{verdict.message}; action {verdict.action.value}"
    return Announcement(
        about=about,
        reason=_REASON[verdict.health],
        message=f"{verdict.device}: {what}",
        at=verdict.since or now,
        level=Level.NORMAL if healthy else Level.WARNING,
        subject=verdict.device if healthy else f"{verdict.device} {verdict.reason}",
    )


def of_restart(target: ContainerRef, condition: Condition, *, now: float) -> Announcement:
    """Return what is told of a restart that was carried out; ``condition`` is ``conditions.for_restart``, settled."""
    done = condition.status is ConditionStatus.TRUE
    return Announcement(
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
) -> Announcement | None:
    """Return what is told of a restart that is not done, or not yet; None when it is.

    ``condition`` is ``conditions.for_refusal``.
    """
    if decision.verb is admission.Verb.ACT:
        return None
    return Announcement(
        about=target.pod,
        reason=RESTART_HELD if decision.verb is admission.Verb.HOLD else RESTART_REFUSED,
        message=f"{decision.reason.value}: {condition.message}",
        at=now,
        subject=f"{target.name} {decision.reason.value}",
        container=target.name,
    )


def of_oom_kill(finding: Finding, *, pod: PodRef | None, container: str = "") -> Announcement | None:
    """Return what is told when the kernel killed a process of a pod for want of memory; None of any other finding.

    ``pod`` and ``container`` are whose it was, as far as that is known. The kernel writes several lines for one kill:
    only the one that names the pod counts. Kills from before an agent first ran here are no news.
    """
    if finding.kind is not FindingKind.OOM_KILL or pod is None:
        return None
    if evidence.POD_UID not in finding.evidence or evidence.LOOK_BACK in finding.evidence:
        return None
    of_node = finding.evidence.get(evidence.OOM_SCOPE) == "node"
    whose = "the node had no memory left" if of_node else "a memory limit of the pod or the container was reached"
    return Announcement(
        about=pod,
        reason=OOM_KILLED,
        message=f"the kernel killed {finding.process_name or 'a process'} (pid {finding.pid}): {whose}",
        at=finding.observed_at,
        subject=container,
        container=container,
    )
