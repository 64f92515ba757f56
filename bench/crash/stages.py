"""Determine how far a restart had come when its agent was killed, from journal and containers. Pure."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from bench.crash.subjects import Subject
from bench.journal import Entry
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents

_NANOSECONDS = 1e9  # in a second


class Stage(enum.Enum):
    """Name the stages, in order. ``BESIDE`` is the dangerous one: a successor waits while the old container runs."""

    NOT_JOURNALLED = "not_journalled"
    JOURNALLED = "journalled"
    BESIDE = "successor_created_beside_old"
    OLD_KILLED = "old_killed"
    CREATED = "successor_created"
    STARTED = "successor_started"
    CLOSED = "verified_and_closed"


@dataclass(frozen=True, slots=True)
class Injected:
    """Describe an injected fault. ``old`` is the container that it hit, ``at`` Unix time in seconds."""

    subject: Subject
    container: str
    old: ContainerId
    pid: int
    at: float

    def is_older_than(self, view: ContainerSummary) -> bool:
        """Return whether a container was created after the fault: a successor."""
        return view.created_at > self.at * _NANOSECONDS


def stage(fault: Injected, *, entries: Iterable[Entry], views: Iterable[ContainerSummary]) -> Stage:
    """Return the stage that the kill hit.

    ``views`` are all of the pod's containers; old ones were created before the fault.
    """
    concerning = [entry for entry in entries if _concerns(entry.intent, fault)]
    if not concerning:
        return Stage.NOT_JOURNALLED
    if concerning[-1].outcome is not None:
        return Stage.CLOSED
    swap = fault.subject.strategy is intents.Strategy.SWAP
    names = {fault.container} if swap else fault.subject.restarted
    replaced = [view for view in views if view.ref.name in names]
    old_runs = any(view.state is ContainerState.RUNNING for view in replaced if not fault.is_older_than(view))
    new = [view for view in replaced if fault.is_older_than(view)]
    if not new:
        untouched = any(view.id == fault.old and view.state is ContainerState.RUNNING for view in replaced)
        return Stage.JOURNALLED if untouched else Stage.OLD_KILLED
    if old_runs:
        return Stage.BESIDE
    run = {view.ref.name for view in new if view.state is not ContainerState.CREATED}
    return Stage.STARTED if run >= names else Stage.CREATED


def _concerns(intent: intents.AnyIntent, fault: Injected) -> bool:
    names = intent.names if isinstance(intent, intents.PodIntent) else {intent.target.name}
    since = intent.created_at >= fault.at
    return since and intent.target.pod.name == fault.subject.name and fault.container in names
