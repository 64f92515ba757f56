"""Judge a pod after its agent died and came back. Pure: observations in, violations out.

Some violations are transient (``unsettled``): they count if they persist. Others (``wrongs``) must never occur.
"""

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid, SandboxId

RUNNING = "Running"
_ALIVE = (RUNNING, "Pending")  # while init containers run again, kubelet reports a pod as Pending
_MOST_PER_KILL = 2


class Wrong(enum.Enum):
    """Name the kinds of violations, each with its place in the figures."""

    POD_FAILED = "pods_failed"
    DUPLICATE = "duplicates"
    LOST = "restarts_lost"
    REFUSED = "refused"
    NOT_IN_PLACE = "pods_not_in_place"
    NOT_RUNNING = "containers_not_running"
    FROZEN = "containers_frozen"
    LEFT_BEHIND = "containers_left_behind"
    KUBELET_DISAGREES = "kubelet_disagrees"
    JOURNAL_OPEN = "journals_open"
    AGENT_NOT_READY = "agents_not_ready"
    RESTART_COUNT = "restart_counts_wrong"


@dataclass(frozen=True, slots=True)
class Violation:
    """Describe one violation. ``pod`` is the subject's name, empty for the agent."""

    wrong: Wrong
    pod: str
    detail: str


@dataclass(frozen=True, slots=True)
class Life:
    """Hold when a container was created, started and exited, in Unix seconds; None: not yet, or never.

    ``stood_still``: it was frozen when its agent was killed. Only an agent can thaw it: to kill it, or because no other
    container of its name runs. ``ours``: an agent created it, not kubelet.
    """

    name: str
    created: float
    began: float | None = None
    ended: float | None = None
    stood_still: bool = False
    ours: bool = False

    def beside(self, other: "Life") -> bool:
        """Return whether both ran at the same time."""
        if self is other or self.name != other.name or self.began is None or other.began is None:
            return False
        return self.began < (other.ended or math.inf) and other.began < (self.ended or math.inf)


@dataclass(frozen=True, slots=True)
class Now:
    """Hold the state of a pod, and its history.

    ``phases`` are all since it first ran, in order. ``running`` and ``shown`` (kubelet's status) are by container name;
    ``frozen`` are the frozen ones. ``refusals`` are messages of refused restarts. ``overlaps`` are the names of
    containers that started while another of their name ran; ``lives`` are all of the pod's containers.
    """

    subject: Subject
    phases: Sequence[str]
    running: Mapping[str, Sequence[ContainerSummary]]
    shown: Mapping[str, ContainerId | None]
    restart_counts: Mapping[str, int]
    frozen: Collection[ContainerId] = ()
    refusals: Sequence[str] = ()
    overlaps: Sequence[str] = ()
    lives: Sequence[Life] = ()


def unsettled(now: Now, faults: Iterable[Injected]) -> tuple[Violation, ...]:
    """Return what a settled pod lacks: one running container of each name, kubelet's consent, handled faults."""
    pod = now.subject.name
    found = []
    if now.phases[-1:] != (RUNNING,):
        found.append(Violation(Wrong.NOT_RUNNING, pod, f"its phase is {now.phases[-1:]}"))
    for name in sorted(now.subject.lasting):
        running = now.running.get(name, ())
        if len(running) > 1:
            ids = ", ".join(f"{view.id[:8]} (attempt {view.attempt})" for view in running)
            found.append(Violation(Wrong.DUPLICATE, pod, f"{len(running)} containers named {name} run: {ids}"))
        elif not running:
            found.append(Violation(Wrong.NOT_RUNNING, pod, f"no container named {name} runs"))
        elif now.shown.get(name) != running[0].id:
            shown = now.shown.get(name) or "none"
            detail = f"kubelet shows {shown[:8]} for {name}, {running[0].id[:8]} runs"
            found.append(Violation(Wrong.KUBELET_DISAGREES, pod, detail))
        found += [
            Violation(Wrong.FROZEN, pod, f"{name} ({view.id[:8]}) is frozen")
            for view in running
            if view.id in now.frozen
        ]
    return (*found, *(lost for fault in faults for lost in _lost(now, fault)))


def left_behind(views: Iterable[ContainerSummary]) -> tuple[Violation, ...]:
    """Return containers that the agent has created and never started, from all of the node."""
    return tuple(
        Violation(
            Wrong.LEFT_BEHIND,
            view.ref.pod.name,
            f"{view.ref.name} attempt {view.attempt} has no intent and was never started",
        )
        for view in views
        if view.restart_id is not None and view.state is ContainerState.CREATED
    )


def refused(now: Now, fault: Injected) -> bool:
    """Return whether the agent has reported that it refuses the restart for this fault."""
    return any(f"pid {fault.pid}:" in message for message in now.refusals)


class Overlap(enum.Enum):
    """Classify what a container found that started while another one of its name still existed.

    ``OLD``: one from before the fault ran. ``COPY``: another successor ran briefly, because kubelet acted on its last
    listing, up to a second old; one of the two must be gone in the end (``unsettled``). ``HELD``: the old one existed,
    but was frozen.
    """

    OLD = "old"
    COPY = "copy"
    HELD = "held"


def overlaps(now: Now, *, before: Now, since: float) -> Sequence[tuple[str, Overlap]]:
    """Return the names of containers that overlapped others, with the kind. Old means created before ``since``."""
    return [(name, _overlap_kind(now.lives, name, since=since)) for name in now.overlaps[len(before.overlaps) :]]


def wrongs(now: Now, *, before: Now, since: float, faults: Collection[Injected], kills: int) -> tuple[Violation, ...]:
    """Return violations since ``before``, with a fault at ``since`` and ``kills`` kills after it."""
    pod = now.subject.name
    phases = now.phases[len(before.phases) :]
    found = [Violation(Wrong.POD_FAILED, pod, f"it was {phase}") for phase in phases if phase not in _ALIVE]
    if _place(now) != _place(before):
        found.append(Violation(Wrong.NOT_IN_PLACE, pod, f"it was in {_place(before)}, and is in {_place(now)}"))
    found += [
        Violation(Wrong.DUPLICATE, pod, f"{name} started while an old one ran")
        for name, what in overlaps(now, before=before, since=since)
        if what is Overlap.OLD
    ]
    found += [
        Violation(Wrong.REFUSED, pod, f"nothing was restarted for pid {fault.pid}: {', '.join(now.refusals)}")
        for fault in faults
        if refused(now, fault)
    ]
    return (*found, *_miscounted(now, before=before, since=since, faults=faults, kills=kills))


def _miscounted(now: Now, *, before: Now, since: float, faults: Iterable[Injected], kills: int) -> Iterable[Violation]:
    """Check the counts: hit containers are restarted, and again at most once per kill; nothing else is restarted.

    Containers that kubelet has created since then come on top: on a busy node it copies a successor.
    """
    hit = {name for fault in faults if not refused(now, fault) for name in fault.subject.restarted}
    for name, count in sorted(now.restart_counts.items()):
        growth = count - before.restart_counts.get(name, 0)
        copies = sum(life.name == name and not life.ours and life.created >= since for life in now.lives)
        least, most = (1, _MOST_PER_KILL * kills + copies) if name in hit else (0, 0)
        if not least <= growth <= most:
            was = before.restart_counts.get(name)
            detail = f"restartCount of {name} went from {was} to {count}, {kills} kills, {copies} made by kubelet"
            yield Violation(Wrong.RESTART_COUNT, now.subject.name, detail)


def _overlap_kind(lives: Sequence[Life], name: str, *, since: float) -> Overlap:
    """An overlap that no event explains counts as old."""
    mine = [life for life in lives if life.name == name]
    together = [life for life in mine if any(life.beside(other) for other in mine)]
    ran = [life for life in mine if not life.stood_still]
    ran_together = [life for life in ran if any(life.beside(other) for other in ran)]
    if ran_together:
        return Overlap.COPY if all(life.created >= since for life in ran_together) else Overlap.OLD
    return Overlap.HELD if together else Overlap.OLD


def _place(now: Now) -> Collection[tuple[PodUid, SandboxId]]:
    return {(view.ref.pod.uid, view.sandbox_id) for views in now.running.values() for view in views}


def _lost(now: Now, fault: Injected) -> tuple[Violation, ...]:
    """Return containers older than the fault: a restart is complete, or lost."""
    if refused(now, fault):
        return ()
    return tuple(
        Violation(Wrong.LOST, fault.subject.name, f"{name} outlived the fault of {fault.container} (pid {fault.pid})")
        for name in sorted(fault.subject.replaced)
        if not any(fault.is_older_than(view) for view in now.running.get(name, ()))
    )
