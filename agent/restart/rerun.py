"""Rerun a pod: remove all containers, then run them again from their configs, init containers first. Pure.

KEP-5532's semantics without its gate, its rules in the pod's spec or its seconds. The names that kubelet could use are
reserved (``agent.restart.reservations``), and the pod is cleared as for a reset; then each container is created and
started in kubelet's order: an init container must end with 0, a sidecar must have started (startup probe included)
before the next one's turn comes, and the main containers start concurrently.

Kubelet reruns a cleared pod by itself, and may be faster with a container whose turn has come: then its container is
adopted. Kubelet may still create others (if it was doing so before the names were reserved, or if its garbage collector
removed a reservation): then a container out of turn is removed, and of two of one name kubemend's. Kubelet is the
fallback for every failure, too: it starts the containers that the agent cannot create, or had not created when it died,
as long as no old container is left and nothing is reserved.
"""

from collections.abc import Iterable, Sequence

from kubemend.agent.model.workloads import ContainerRole, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, reservations, reset
from kubemend.agent.restart.reset import Known
from kubemend.agent.restart.steps import LIVE, Resolution, Step, StepKind, StepReason

_NOTHING = Known()


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerSummary],
    *,
    known: Known = _NOTHING,
    resolution: Resolution = Resolution.FINISH,
    can_clone: bool = True,
) -> tuple[Step, ...]:
    """Return the next steps, which may be taken concurrently, given every container of the pod; at least one.

    ``can_clone`` is False if the old configs are not available (a replay): then kubelet starts the missing containers.
    A WAIT or a DONE comes alone.

    Invariants (property-tested): nothing old is removed before the names of the containers whose turn comes later are
    reserved, and the names of copies in which something is kept; nothing is created before its copy's name is; no name
    is released before kubelet shows the running containers, unless kubelet must continue; nothing is started while
    anything old is left; a START only names a container of this intent; an init container is never created while a
    successor of it exists, and nothing is created before its turn; kubelet's container is removed only if it is out of
    turn.
    """
    seen = tuple(seen)
    ours_to_start = can_clone and resolution is Resolution.FINISH
    if (end := reset.end_before_removals(intent, seen, known=known, resolution=resolution)) is not None:
        return _ended(intent, seen, known=known, end=end)
    if ours_to_start and (steps := _reserving(intent, seen, known=known)):
        return steps
    clearing = reset.clearing if ours_to_start else reset.clearing_for_kubelet
    if steps := clearing(intent, seen, known=known, resolution=resolution) or _duplicates(intent, seen):
        return steps + (_copies(intent, seen, known=known) if ours_to_start else ())
    if not ours_to_start:
        return _handing_over(intent, seen)
    for planned in intent.plan:
        if planned.role is not ContainerRole.MAIN:
            step = _next_of(intent, planned, seen=seen, known=known)
            if step is not None:
                return _ended(intent, seen, known=known, end=step) if step.kind is StepKind.DONE else (step,)
    return _mains(intent, seen, known=known) or _ended(
        intent, seen, known=known, end=Step(StepKind.DONE, StepReason.RERUN)
    )


def _reserving(intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known) -> tuple[Step, ...]:
    if not any(view.id in intent.old_ids for view in seen):
        return ()
    if left_over := reservations.left_over(intent, seen):
        return left_over
    keeping = [planned for planned in intent.plan if planned.name in known.keeps]
    return (
        *reservations.missing_turns(intent, seen, taken=known.taken),
        *reservations.missing_copies(intent, seen, of=keeping, taken=known.taken),
    )


def _copies(intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known) -> tuple[Step, ...]:
    """Return which names of copies to reserve while the running containers end, which takes longer.

    Not while the exited ones are removed, which is quick.
    """
    old = {view.state for view in seen if view.id in intent.old_ids}
    if not old or (ContainerState.EXITED in old and len(old) > 1):
        return ()
    return reservations.missing_copies(
        intent,
        seen,
        of=[planned for planned in intent.plan if not reset.successors(intent, seen, planned.name)],
        taken=known.taken,
    )


def _turn(
    intent: intents.PodIntent, planned: intents.Planned, *, seen: Sequence[ContainerSummary], known: Known
) -> Step:
    """Return the step for a container whose turn has come. The name of a copy is reserved first, if it is not yet."""
    missing = reservations.missing_copies(intent, seen, of=[planned], taken=known.taken)
    return missing[0] if missing else reservations.turn(intent, seen, planned)


def _ended(intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known, end: Step) -> tuple[Step, ...]:
    """Release names before the end: at once if kubelet must continue, because it needs them.

    If everything runs, a sync of kubelet's based on an earlier relist may still be in progress. But its syncs are
    sequential, and each publishes what it saw before it acts: when kubelet shows a container running, the last sync
    that could have started a copy has ended.
    """
    if end.reason is StepReason.RERUN and not known.afterwards:
        return (end,)
    if end.reason is not StepReason.RERUN or known.overdue:
        return reservations.releases(intent, seen, names=intent.names) or (end,)
    lasting = [planned.name for planned in intent.plan if planned.role is not ContainerRole.INIT]
    newest = {name: made[-1] for name in lasting if (made := reset.successors(intent, seen, name))}
    settled = {name for name, view in newest.items() if view.state is ContainerState.EXITED or view.id in known.running}
    if len(settled) == len(lasting):
        return reservations.releases(intent, seen, names=intent.names) or (end,)
    if releases := reservations.releases(intent, seen, names=settled):
        return releases
    if not reservations.releases(intent, seen, names=intent.names):
        return (end,)
    awaited = next(view for name, view in newest.items() if name not in settled)
    return (Step(StepKind.WAIT, StepReason.NOT_SHOWN, awaited.id, awaited.ref.name),)


def _duplicates(intent: intents.PodIntent, seen: Sequence[ContainerSummary]) -> tuple[Step, ...]:
    """Remove kubemend's of two containers of one name: kubelet considers the newest alone, which is its own.

    If kubelet's has ended already, kubemend's must not begin, and an init container of kubemend's must not continue:
    kubelet has its result and continues. A running sidecar or main container of kubemend's stays then; kubelet must
    restart its own first.
    """
    found = []
    for planned in intent.plan:
        made = reset.successors(intent, seen, planned.name)
        theirs = [view for view in made if view.restart_id != intent.id]
        kubelets_runs = any(view.state in LIVE for view in theirs)
        for view in made:
            if view in theirs or view.state not in LIVE or not theirs:
                continue
            runs_on = view.state is ContainerState.RUNNING and planned.role is not ContainerRole.INIT
            if kubelets_runs or not runs_on:
                found.append(Step(StepKind.REMOVE, StepReason.KUBELET_WON, view.id, planned.name))
    return tuple(found)


def _handing_over(intent: intents.PodIntent, seen: Sequence[ContainerSummary]) -> tuple[Step, ...]:
    """Remove waiting containers: kubelet would start another one next to a container that it finds CREATED."""
    waiting = [
        Step(StepKind.REMOVE, StepReason.UNDOING, view.id, view.ref.name)
        for view in seen
        if view.restart_id == intent.id and view.state in (ContainerState.CREATED, ContainerState.UNKNOWN)
    ]
    if waiting:
        return tuple(waiting)
    missing = any(not reset.successors(intent, seen, planned.name) for planned in intent.plan)
    return (Step(StepKind.DONE, StepReason.LEFT_TO_KUBELET if missing else StepReason.RERUN),)


def _next_of(
    intent: intents.PodIntent, planned: intents.Planned, *, seen: Sequence[ContainerSummary], known: Known
) -> Step | None:
    """Return the step that an init container or a sidecar still needs, or None if the next one's turn has come."""
    made = reset.successors(intent, seen, planned.name)
    if not made:
        return _turn(intent, planned, seen=seen, known=known)
    live = [view for view in made if view.state in LIVE]
    newest = live[-1] if live else made[-1]
    if newest.state is ContainerState.EXITED:
        return _after_exit(planned, newest, known=known)
    if (step := _until_it_runs(intent, newest)) is not None:
        return step
    if planned.role is ContainerRole.INIT:
        return Step(StepKind.WAIT, StepReason.INIT_RUNS, newest.id, planned.name)
    if planned.has_startup_probe and newest.id not in known.started:
        return Step(StepKind.WAIT, StepReason.NOT_STARTED, newest.id, planned.name)
    return None


def _after_exit(planned: intents.Planned, ended: ContainerSummary, *, known: Known) -> Step | None:
    if planned.role is ContainerRole.SIDECAR:
        return Step(StepKind.DONE, StepReason.SIDECAR_EXITED, ended.id, planned.name)
    end = known.exits.get(ended.id)
    if end is None:
        return Step(StepKind.WAIT, StepReason.STATE_UNKNOWN, ended.id, planned.name)
    return None if end.code == 0 else Step(StepKind.DONE, StepReason.INIT_FAILED, ended.id, planned.name)


def _until_it_runs(intent: intents.PodIntent, view: ContainerSummary) -> Step | None:
    """Return the step that starts a live container, or None if it runs."""
    if view.state is ContainerState.RUNNING:
        return None
    name = view.ref.name
    if view.restart_id != intent.id:
        return Step(StepKind.WAIT, StepReason.KUBELET_STARTS_ITS_OWN, view.id, name)
    if view.state is ContainerState.CREATED:
        return Step(StepKind.START, StepReason.SUCCESSOR_READY, view.id, name)
    return Step(StepKind.WAIT, StepReason.STATE_UNKNOWN, view.id, name)


def _mains(intent: intents.PodIntent, seen: Sequence[ContainerSummary], *, known: Known) -> tuple[Step, ...]:
    """Start all main containers concurrently. One that has already ended again is kubelet's, by the pod's policy."""
    wanted: list[Step] = []
    for planned in intent.plan:
        if planned.role is not ContainerRole.MAIN:
            continue
        made = reset.successors(intent, seen, planned.name)
        if not made:
            wanted.append(_turn(intent, planned, seen=seen, known=known))
        elif live := [view for view in made if view.state in LIVE]:
            wanted += [step for step in [_until_it_runs(intent, live[-1])] if step is not None]
    active = tuple(step for step in wanted if step.kind is not StepKind.WAIT)
    return active or tuple(wanted[:1])
