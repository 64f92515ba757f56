"""The rerun: take every container of a pod away, then run it again from its own configs, init containers first. Pure.

KEP-5532's semantics without its gate, its rules in the pod's spec or its seconds. The names that kubelet could come
up with are reserved (``agent.restart.reservations``), and the pod is cleared as for a reset; then each container is
created and started in kubelet's order: an init container must end with 0, a sidecar must have started (startup probe
included) before the next one's turn comes, and the mains go side by side.

Kubelet reruns a cleared pod by itself, and may be faster with a container whose turn has come: what it has created is
adopted. It may slip through nevertheless (where it was at it before the names were reserved, or where its garbage
collector took a reservation): then what is out of turn goes, and of two of one name ours. Kubelet is the way out of
every failure, too: what we cannot create, and what our own death has left undone, is its to finish, as long as nothing
of the old is left and nothing is reserved.
"""

from collections.abc import Iterable, Sequence

from agent.model.workloads import ContainerRole, ContainerState, ContainerView
from agent.restart import intents, reservations, reset
from agent.restart.reset import Known
from agent.restart.steps import LIVE, Resolution, Step, StepKind, Why

_NOTHING = Known()


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerView],
    *,
    known: Known = _NOTHING,
    resolution: Resolution = Resolution.FINISH,
    can_clone: bool = True,
) -> tuple[Step, ...]:
    """Return the next steps, which may be taken side by side, given every container of the pod; at least one.

    ``can_clone`` is False when the old configs are not at hand (a replay): then kubelet starts what is missing.
    A WAIT or a DONE comes alone.

    Invariants (property-tested): nothing old is taken away before every name is reserved, and none is given back
    before kubelet shows what runs, unless kubelet is to go on; nothing is started while anything old is left; a START
    only ever names a container of this intent; an init container is never created while a successor of it exists, and
    nothing is created before its turn; what kubelet has made is removed only where it is out of turn.
    """
    seen = tuple(seen)
    ours_to_start = can_clone and resolution is Resolution.FINISH
    if resolution is Resolution.UNDO and reset.is_untouched(intent, seen):
        return _ended(intent, seen, known=known, end=Step(StepKind.DONE, Why.UNDONE))
    if ours_to_start and (steps := _reserving(intent, seen, known=known)):
        return steps
    clearing = reset.clearing if ours_to_start else reset.clearing_for_kubelet
    if steps := clearing(intent, seen, known=known) or _duplicates(intent, seen):
        return steps
    if not ours_to_start:
        return _handing_over(intent, seen)
    for planned in intent.plan:
        if planned.role is not ContainerRole.MAIN:
            step = _next_of(intent, planned, seen=seen, known=known)
            if step is not None:
                return _ended(intent, seen, known=known, end=step) if step.kind is StepKind.DONE else (step,)
    return _mains(intent, seen) or _ended(intent, seen, known=known, end=Step(StepKind.DONE, Why.RERUN))


def _reserving(intent: intents.PodIntent, seen: Sequence[ContainerView], *, known: Known) -> tuple[Step, ...]:
    if not any(view.id in intent.old for view in seen):
        return ()
    return reservations.left_over(intent, seen) or reservations.missing(intent, seen, taken=known.taken)


def _ended(intent: intents.PodIntent, seen: Sequence[ContainerView], *, known: Known, end: Step) -> tuple[Step, ...]:
    """Give names back before the end: at once where kubelet is to go on, for it needs them.

    Where all runs, a sync of kubelet's may still be under way by a look from before. But its syncs come one after
    another, and each tells what it saw before it acts: when it shows a container running, the last sync that could
    have started a copy has ended.
    """
    if end.why is Why.RERUN and not known.afterwards:
        return (end,)
    if end.why is not Why.RERUN or known.overdue:
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
    return (Step(StepKind.WAIT, Why.NOT_SHOWN, awaited.id, awaited.ref.name),)


def _duplicates(intent: intents.PodIntent, seen: Sequence[ContainerView]) -> tuple[Step, ...]:
    """Of two containers of one name ours goes: kubelet looks at the newest alone, and that is its own.

    Where kubelet's has ended already, ours must not begin, and an init container of ours must not run on: kubelet has
    its answer and goes on. A sidecar or main of ours that runs stays then; kubelet has to restart its own first.
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
                found.append(Step(StepKind.REMOVE, Why.KUBELET_WON, view.id, planned.name))
    return tuple(found)


def _handing_over(intent: intents.PodIntent, seen: Sequence[ContainerView]) -> tuple[Step, ...]:
    """Take back what waits: kubelet would start another one beside a container that it finds CREATED."""
    waiting = [
        Step(StepKind.REMOVE, Why.UNDOING, view.id, view.ref.name)
        for view in seen
        if view.restart_id == intent.id and view.state in (ContainerState.CREATED, ContainerState.UNKNOWN)
    ]
    if waiting:
        return tuple(waiting)
    missing = any(not reset.successors(intent, seen, planned.name) for planned in intent.plan)
    return (Step(StepKind.DONE, Why.LEFT_TO_KUBELET if missing else Why.RERUN),)


def _next_of(
    intent: intents.PodIntent, planned: intents.Planned, *, seen: Sequence[ContainerView], known: Known
) -> Step | None:
    """Return what an init container or a sidecar still needs, or None when the next one's turn has come."""
    made = reset.successors(intent, seen, planned.name)
    if not made:
        return reservations.turn(intent, seen, planned)
    live = [view for view in made if view.state in LIVE]
    newest = live[-1] if live else made[-1]
    if newest.state is ContainerState.EXITED:
        return _after_exit(planned, newest, known=known)
    if (step := _until_it_runs(intent, newest)) is not None:
        return step
    if planned.role is ContainerRole.INIT:
        return Step(StepKind.WAIT, Why.INIT_RUNS, newest.id, planned.name)
    if planned.has_startup_probe and newest.id not in known.started:
        return Step(StepKind.WAIT, Why.NOT_STARTED, newest.id, planned.name)
    return None


def _after_exit(planned: intents.Planned, ended: ContainerView, *, known: Known) -> Step | None:
    if planned.role is ContainerRole.SIDECAR:
        return Step(StepKind.DONE, Why.SIDECAR_EXITED, ended.id, planned.name)
    end = known.exits.get(ended.id)
    if end is None:
        return Step(StepKind.WAIT, Why.STATE_UNKNOWN, ended.id, planned.name)
    return None if end.code == 0 else Step(StepKind.DONE, Why.INIT_FAILED, ended.id, planned.name)


def _until_it_runs(intent: intents.PodIntent, view: ContainerView) -> Step | None:
    """Return the step that brings a live container up, or None when it runs."""
    if view.state is ContainerState.RUNNING:
        return None
    name = view.ref.name
    if view.restart_id != intent.id:
        return Step(StepKind.WAIT, Why.KUBELET_STARTS_ITS_OWN, view.id, name)
    if view.state is ContainerState.CREATED:
        return Step(StepKind.START, Why.SUCCESSOR_READY, view.id, name)
    return Step(StepKind.WAIT, Why.STATE_UNKNOWN, view.id, name)


def _mains(intent: intents.PodIntent, seen: Sequence[ContainerView]) -> tuple[Step, ...]:
    """Bring all mains up side by side. One that has already ended again is kubelet's, by the pod's own policy."""
    wanted: list[Step] = []
    for planned in intent.plan:
        if planned.role is not ContainerRole.MAIN:
            continue
        made = reset.successors(intent, seen, planned.name)
        if not made:
            wanted.append(reservations.turn(intent, seen, planned))
        elif live := [view for view in made if view.state in LIVE]:
            wanted += [step for step in [_until_it_runs(intent, live[-1])] if step is not None]
    active = tuple(step for step in wanted if step.kind is not StepKind.WAIT)
    return active or tuple(wanted[:1])
