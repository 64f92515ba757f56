"""Reset a pod: remove all of its containers, and let kubelet rerun it with fresh config. Pure.

Kubelet (1.36, ``computeInitContainerActions``) runs the init containers again only if it finds no main container
created or running, and no init container or sidecar either: the last one of these that it finds decides what comes
next. So exited containers are removed first, while the main containers still run (kubelet ignores finished init
containers then, but restarts a sidecar that it finds exited); then all others at once.

Kubelet may list in between, or act on an earlier listing. What it then starts too early is out of turn: a container
that follows, in the spec, an init container that has not ended again. Such a container is removed, too.

Kubelet syncs a pod when two of its listings differ (``generateEvents`` in ``pkg/kubelet/pleg/generic.go``). It never
notices a container that appears and disappears between two of them: the pod would stay empty until its timer, 60 to 90
seconds. So the last containers are removed once kubelet has seen them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerState, ContainerSummary
from kubemend.agent.restart import intents
from kubemend.agent.restart.steps import LIVE, Resolution, Step, StepKind, StepReason


@dataclass(frozen=True, slots=True)
class Exit:
    """How and when a container ended; the time is in Unix nanoseconds, by the runtime's clock."""

    code: int
    at: int


@dataclass(frozen=True, slots=True)
class Known:
    """Facts that a listing does not contain.

    ``exits``: how containers ended. ``started`` and ``running``: those that kubelet's status shows so. ``noticed``:
    those that its status shows in any state, or that are old enough for it to have seen them. ``taken``: names (with
    attempts) that could not be reserved, because another container holds them. ``afterwards``: everything had been
    started before, and this is a check of the result. ``overdue``: kubelet has had enough time for that. ``keeps``: the
    names of the containers of which paths wait in the reservation for the name's copy. ``is_stopped``: this agent has
    asked for the end of the target.
    """

    exits: Mapping[ContainerId, Exit] = field(default_factory=lambda: MappingProxyType({}))
    started: frozenset[ContainerId] = frozenset()
    running: frozenset[ContainerId] = frozenset()
    noticed: frozenset[ContainerId] = frozenset()
    taken: frozenset[tuple[str, int]] = frozenset()
    afterwards: bool = False
    overdue: bool = False
    keeps: frozenset[str] = frozenset()
    is_stopped: bool = False


_NOTHING = Known()
_NANOSECONDS = 1_000_000_000  # in a second


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerSummary],
    *,
    known: Known = _NOTHING,
    resolution: Resolution = Resolution.FINISH,
) -> tuple[Step, ...]:
    """Return the next steps, which may be taken concurrently, given every container of the pod; at least one.

    A WAIT or a DONE comes alone. Invariant (property-tested): after any removal, and any death of the agent, kubelet
    starts the pod because of a change in its listings, without its timer.
    """
    seen = tuple(seen)
    if (end := end_before_removals(intent, seen, known=known, resolution=resolution)) is not None:
        return (end,)
    return clearing_for_kubelet(intent, seen, known=known, resolution=resolution) or (
        Step(StepKind.DONE, StepReason.CLEARED),
    )


def end_before_removals(
    intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known, resolution: Resolution
) -> Step | None:
    """Return the end of a restart that must remove nothing (more); None if it must."""
    if (end := completed(intent, seen, known=known)) is not None:
        return end
    if resolution is Resolution.UNDO and is_undoable(intent, seen):
        return Step(StepKind.DONE, StepReason.UNDONE)
    return replaced(intent, seen, known=known)


def replaced(intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known = _NOTHING) -> Step | None:
    """Return the end of a restart whose target kubelet has replaced before anything was ended; None if it has not.

    Kubelet's container has started after the fault. If a previous agent may have stopped the old one, with a grace
    period, that must have ended before the restart began.
    """
    old = next((view for view in seen if view.id == intent.target_old), None)
    made = successors(intent, seen, intent.target.name)
    if old is None or old.state is not ContainerState.EXITED or not made or not is_whole(intent, seen):
        return None
    end = known.exits.get(old.id)
    by_itself = intent.grace_seconds <= 0 or (end is not None and end.at < intent.created_at * _NANOSECONDS)
    if known.is_stopped or not by_itself:
        return None
    return Step(StepKind.DONE, StepReason.ALREADY_REPLACED, made[-1].id)


def is_whole(intent: intents.PodIntent, seen: Iterable[ContainerSummary]) -> bool:
    """Return whether the newest old container of each name is listed, apart from init containers."""
    lasting = (planned for planned in intent.plan if planned.role is not ContainerRole.INIT)
    return {planned.old[-1] for planned in lasting if planned.old} <= {view.id for view in seen}


def completed(intent: intents.PodIntent, seen: Iterable[ContainerSummary], *, known: Known) -> Step | None:
    """Return the end of a restart whose target has ended for good before it was removed; None if it has not.

    A container that is removed is killed. Kubelet starts the containers that have been removed by then.
    """
    old = next((view for view in seen if view.id == intent.may_complete), None)
    end = known.exits.get(old.id) if old is not None else None
    if old is None or end is None or end.code != 0:
        return None
    return Step(StepKind.DONE, StepReason.COMPLETED, old.id, old.ref.name)


def is_untouched(intent: intents.PodIntent, seen: Iterable[ContainerSummary]) -> bool:
    """Return whether nothing has been removed yet, so that the restart can be undone."""
    return {view.id for view in seen if view.ref.name in intent.names} == intent.old_ids


def is_undoable(intent: intents.PodIntent, seen: Sequence[ContainerSummary]) -> bool:
    """Return whether the pod can be left as it is: old containers are left, and none but init containers is missing.

    Kubelet may have restarted or collected some since, so this is not a sign that the restart had ended any: an old one
    that runs, and a successor that kubelet has started, may have worked for days when an agent comes back.
    """
    names = {view.ref.name for view in seen}
    ran = {planned.name for planned in intent.plan if planned.old and planned.role is not ContainerRole.INIT}
    return ran <= names and any(view.id in intent.old_ids for view in seen)


def clearing(
    intent: intents.PodIntent,
    seen: Sequence[ContainerSummary],
    *,
    known: Known,
    resolution: Resolution = Resolution.FINISH,
) -> tuple[Step, ...]:
    """Return the removals that are still needed; empty if nothing old, and nothing out of turn, is left."""
    old = [view for view in seen if view.id in intent.old_ids]
    exited = [view for view in old if view.state is ContainerState.EXITED]
    if exited and len(exited) < len(old):
        return _removals(exited, StepReason.OLD_LEFT)
    running = [view for view in old if view.state is ContainerState.RUNNING]
    if running and intent.grace_seconds > 0:
        return tuple(Step(StepKind.STOP, StepReason.OLD_RUNS, view.id, view.ref.name) for view in running)
    return _removals(old, StepReason.OLD_LEFT) + _removals(
        _out_of_turn(intent, seen, known=known, resolution=resolution), StepReason.OUT_OF_TURN
    )


def clearing_for_kubelet(
    intent: intents.PodIntent,
    seen: Sequence[ContainerSummary],
    *,
    known: Known,
    resolution: Resolution = Resolution.FINISH,
) -> tuple[Step, ...]:
    """Return the same if kubelet must start the missing containers; a WAIT while it would not notice the removal.

    Kubelet notices the absence of a container that it has seen, if that was live, and is already restarting it, if that
    had ended. It notices the end of an init container that stays. Of each name its status shows the newest alone, which
    it creates when it has seen the end of the one before.
    """
    todo = clearing(intent, seen, known=known, resolution=resolution)
    going = {step.container for step in todo if step.kind is StepKind.REMOVE}
    inits = {planned.name for planned in intent.plan if planned.role is ContainerRole.INIT}
    stays = (view for view in seen if view.id not in going)
    if any(view.id in intent.old_ids or (view.ref.name in inits and view.state in LIVE) for view in stays):
        return todo
    newest = {view.ref.name: view for view in sorted(seen, key=lambda view: view.created_at)}
    for view in newest.values():
        if view.id in going and view.id not in known.noticed:
            return (Step(StepKind.WAIT, StepReason.NOT_SHOWN, view.id, view.ref.name),)
    return todo


def successors(intent: intents.PodIntent, seen: Iterable[ContainerSummary], name: str) -> list[ContainerSummary]:
    """Return the containers of a name that are not old, oldest first."""
    found = (view for view in seen if view.ref.name == name and view.id not in intent.old_ids)
    return sorted(found, key=lambda view: view.generation)


def _removals(views: Iterable[ContainerSummary], reason: StepReason) -> tuple[Step, ...]:
    return tuple(Step(StepKind.REMOVE, reason, view.id, view.ref.name) for view in views)


def _out_of_turn(
    intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known, resolution: Resolution
) -> list[ContainerSummary]:
    """Return containers started although an init container before them had not run again, or was running once more.

    The latter happens if kubelet lists between the creation and the start of kubemend's: it then starts another one,
    whose work must be complete before anything uses it. An init container whose end is not known yet counts as run: no
    kill on a guess. So does one that is gone when the restart is undone: it may have been collected since, and the pod
    may have worked for days. Times before the start of the restart (the clock was set back) are ignored.
    """
    found: list[ContainerSummary] = []
    its_turn, began, ended = True, int(intent.created_at * _NANOSECONDS), 0
    for planned in intent.plan:
        made = successors(intent, seen, planned.name)
        found += [view for view in made if not its_turn or began <= view.created_at < ended]
        if planned.role is ContainerRole.INIT and its_turn:
            collected = not made and resolution is Resolution.UNDO
            its_turn = collected or _has_run(made, known=known)
            exits = [known.exits[view.id].at for view in made if view.id in known.exits]
            ended = max([ended, *exits])
    return found


def _has_run(made: Sequence[ContainerSummary], *, known: Known) -> bool:
    ended = [view for view in made if view.state not in LIVE]
    succeeded = any(view.id not in known.exits or known.exits[view.id].code == 0 for view in ended)
    return succeeded and len(ended) == len(made)
