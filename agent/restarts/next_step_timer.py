"""Measure the time from a restart to the container's next step: to the first touch of its heartbeat file.

Informational; nothing blocks on it. The checks are those of ``agent.sources.heartbeats``; none is made for this. What a
previous agent was waiting for is not measured.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from kubemend.agent.health.state import next_step
from kubemend.agent.health.state.heartbeat import Mark
from kubemend.agent.health.state.next_step import FileCheck, Restarted, Step, Unknown
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerSummary, PodView
from kubemend.agent.restart import members, options
from kubemend.agent.restart.intents import Strategy

log = structlog.get_logger(__name__)

FAULT, START = "fault", "start"
"""The label ``since`` of the metric: from the cause of the restart, or from the moment the new container runs."""

MOST_WAITS = 1024
"""Containers whose next step is awaited at once."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    restart: str
    strategy: Strategy
    restarted: Restarted
    fault_age: float  # seconds from the fault to ``restarted``; negative if the fault's clock is not the node's
    old: frozenset[ContainerId]
    successor: ContainerId | None  # None until kubelet has started it


class NextStepTimer:
    """Times the first touch of restarted containers (``agent.sources.heartbeats.Polls``)."""

    def __init__(self, *, metrics: Metrics) -> None:
        self._metrics = metrics
        self._awaited: dict[ContainerRef, _Awaited] = {}
        self._seen: dict[ContainerId, FileCheck] = {}

    def expect(
        self,
        restart: str,
        *,
        strategy: Strategy,
        pod: PodView | None,
        old: frozenset[ContainerId],
        successors: Mapping[str, ContainerId | None],
        fault_age: float,
    ) -> None:
        """Start timing those of the restarted containers that have a heartbeat file.

        ``successors`` maps the names to the new containers, to None where kubelet starts it later. ``fault_age`` is the
        time since the restart's cause in seconds.
        """
        now = time.monotonic()
        unix, slept = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME) - now
        for ref, each in list(self._awaited.items()):
            if now - each.restarted.at > next_step.LONGEST_WAIT:
                self._drop(ref, "not watched any more")
        for name in sorted(_with_heartbeat(pod) & successors.keys()):
            assert pod is not None
            ref = ContainerRef(pod.ref, name)
            if len(self._awaited) >= MOST_WAITS and ref not in self._awaited:
                log.info(
                    "restart.next_step_unknown", restart=restart, container=str(ref), reason="too many are awaited"
                )
                continue
            successor = successors[name]
            restarted = Restarted(now, unix, slept, by_kubelet=successor is None)
            self._awaited[ref] = _Awaited(restart, strategy, restarted, fault_age, old, successor)

    def polled(self, container: ContainerSummary, check: FileCheck) -> None:
        """Record one check of a container's heartbeat file.

        Kubelet may end a container that it has started and start another one: while it restarts a whole pod, its last
        listing may show the pod half cleared. Then the other one's step is the next.
        """
        before = self._seen.get(container.id)
        seen = next_step.seen(before, check)
        if seen is not None:
            self._seen[container.id] = seen
        each = self._awaited.get(container.ref)
        if each is None or container.id in each.old:
            return
        if each.restarted.by_kubelet and each.successor != container.id:
            each = self._awaited[container.ref] = replace(each, successor=container.id)
        if each.successor != container.id:
            self._drop(container.ref, "another container runs in its place")
            return
        found = next_step.first_touch(each.restarted, before, check)
        if isinstance(found, Step) and self._is_shared(container.id, check):
            found = Unknown("another container has the same heartbeat file")
        match found:
            case Step():
                self._observe(container.ref, each, found)
            case Unknown():
                self._drop(container.ref, found.reason)

    def unwatched(self, container: ContainerSummary) -> None:
        """Forget a container that has ended, or whose heartbeat is no longer watched."""
        self._seen.pop(container.id, None)
        each = self._awaited.get(container.ref)
        if each is not None and each.successor == container.id and not each.restarted.by_kubelet:
            self._drop(container.ref, "it ended, or its heartbeat is no longer watched")

    def _is_shared(self, container: ContainerId, check: FileCheck) -> bool:
        """Return whether the file is also another running container's heartbeat: then that one may have touched it."""
        assert isinstance(check.poll.result, Mark)
        file = _file(check)
        return any(_file(other) == file for id_, other in self._seen.items() if id_ != container)

    def _observe(self, ref: ContainerRef, each: _Awaited, step: Step) -> None:
        del self._awaited[ref]
        took = step.latest - step.start
        self._metrics.next_step.labels(each.strategy.value, START).observe(took)
        since_fault = None
        if each.fault_age >= 0.0:
            since_fault = each.fault_age + step.latest - each.restarted.at
            self._metrics.next_step.labels(each.strategy.value, FAULT).observe(since_fault)
        log.info(
            "restart.next_step",
            restart=each.restart,
            container=str(ref),
            milliseconds=round(took * 1000, 1),
            at_least_milliseconds=round((step.earliest - step.start) * 1000, 1),
            milliseconds_since_fault=round(since_fault * 1000, 1) if since_fault is not None else None,
        )

    def _drop(self, ref: ContainerRef, reason: str) -> None:
        each = self._awaited.pop(ref)
        log.info("restart.next_step_unknown", restart=each.restart, container=str(ref), reason=reason)


def _file(check: FileCheck) -> tuple[int, int] | None:
    file = check.poll.result
    return (file.device, file.inode) if isinstance(file, Mark) else None


def _with_heartbeat(pod: PodView | None) -> frozenset[str]:
    """Return the containers whose heartbeat files are watched."""
    if pod is None or options.HEARTBEAT_FILE not in pod.annotations:
        return frozenset()
    try:
        chosen = options.parse(pod.annotations)
    except options.BadAnnotationError:
        return frozenset()
    return members.targets(pod, named=chosen.containers) if chosen.heartbeat is not None else frozenset()
