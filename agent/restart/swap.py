"""Swap a container: create and start n+1 from n's own config, and stop n, in a safe order. Pure.

Kubelet works on the same pod at the same time and may do any part of it first. So a swap is not a list of steps but a
rule from the runtime's listing to the one next step; the same rule continues after a crash, after a lost answer and
after a race. It ends when exactly one container newer than the old one lives and the old one does not run.

Facts behind it (measured on kubelet 1.36, docs/architecture.md): kubelet only considers the newest container of a name,
never kills an older duplicate, adopts a successor that it did not create, and takes a newest container in CREATED for
one that it should start itself.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, steps
from kubemend.agent.restart.steps import Resolution, Step, StepKind, StepReason

KUBELETS_TURN: Final = 5.0
"""Seconds within which kubelet creates the successor of a container that has ended: it relists every second. A kubelet
that has not in this time is not there, or backs off, and that could not be seen."""


def next_step(
    intent: intents.Intent,
    seen: Iterable[ContainerSummary],
    *,
    resolution: Resolution = Resolution.FINISH,
    can_clone: bool = True,
    is_unlike: bool = False,
    is_held: bool = False,
    stays: Collection[ContainerId] = (),
    kubelet_first: bool = False,
    old_exit: int | None = None,
    recalls: bool = False,
) -> Step:
    """Return the one next step, given every container of the target's name that the runtime lists now.

    - ``can_clone`` is False if the old container's config is not available (removed before a replay)
    - ``is_unlike``: the successor differs from the old container, and is removed (``agent.restart.likeness``);
      ``is_held``: also if it runs, held at its first instruction
    - ``stays`` are successors that a round has released, or is about to release: kubelet's container next to such a
      successor is removed, and not the successor
    - ``kubelet_first``: kubelet is about to create the successor of a container that has ended; until it has, the
      runtime must not be asked for a container of that name
    - ``old_exit``: the exit code of the old container; None if it runs, or the code could not be read
    - ``recalls``: a running successor of a container that has completed is removed, too

    Invariants (property-tested):

    - STOP only names the old container.
    - REMOVE only names a container of this intent, kubelet's container next to one that stays, or one that has ended
      and that kubelet would take for the newest.
    - START is never returned while the old container runs, unless the order starts first; then the old one is frozen
      and the successor held.
    - CREATE is never returned while a newer container exists, nor if the old one has completed, nor to undo if the old
      one may have ended for good.
    """
    containers = sorted(seen, key=lambda view: view.generation)
    old = next((view for view in containers if view.id == intent.old), None)
    newer = [view for view in containers if view.attempt > intent.old_attempt]
    live = [view for view in newer if view.state in steps.LIVE]
    ours = [view for view in live if view.restart_id == intent.id]
    others = [view for view in live if view.restart_id != intent.id]
    old_runs = old is not None and old.state is ContainerState.RUNNING

    if ours and others and ours[-1].id in stays and all(view.restart_id is None for view in others):
        return Step(StepKind.REMOVE, StepReason.OUT_OF_TURN, others[-1].id)
    if ours and others:
        return Step(StepKind.REMOVE, StepReason.KUBELET_WON, ours[-1].id)
    if is_unlike:
        unused = (ContainerState.CREATED, ContainerState.RUNNING) if is_held else (ContainerState.CREATED,)
        waiting = [view for view in ours if view.state in unused]
        if waiting or not newer:
            return (
                Step(StepKind.REMOVE, StepReason.NOT_ALIKE, waiting[-1].id)
                if waiting
                else Step(StepKind.DONE, StepReason.NOT_ALIKE)
            )
    if old_exit == 0 and _completed_by_itself(intent, has_successor=bool(ours)):
        unused = (ContainerState.CREATED, ContainerState.RUNNING) if recalls else (ContainerState.CREATED,)
        waiting = [view for view in ours if view.state in unused and view.id not in stays]
        if waiting or not newer:
            kind = StepKind.REMOVE if waiting else StepKind.DONE
            return Step(kind, StepReason.COMPLETED, waiting[-1].id if waiting else None)
    if ours and old_runs and intent.order.starts_first:
        return _start_on_standby(intent, ours[-1], go_on=resolution is Resolution.FINISH and can_clone)
    if resolution is Resolution.UNDO and old_runs and not others:
        return (
            Step(StepKind.REMOVE, StepReason.UNDOING, ours[-1].id) if ours else Step(StepKind.DONE, StepReason.UNDONE)
        )
    if live and old_runs:
        return Step(StepKind.STOP, StepReason.OLD_RUNS, intent.old)
    if others or ours:
        step = _wait_for_kubelet(others) if others else _bring_up(ours[-1])
        return _unmistakable(step, containers) if step.kind is StepKind.DONE else step
    creates = resolution is Resolution.FINISH or (old_exit not in (None, 0) and intent.order.exit_is_restarted)
    return _without_successor(
        intent, old=old, newer=newer, creates=creates, can_clone=can_clone, kubelet_first=kubelet_first
    )


def _completed_by_itself(intent: intents.Intent, *, has_successor: bool) -> bool:
    """Return whether a container that has exited with 0 has completed, and was not stopped by this restart.

    With a grace period it may have answered SIGTERM. Then it is stopped only if it has a successor (``SwapOrder.of``).
    """
    return intent.completes and (intent.grace_seconds <= 0 or not has_successor)


def _start_on_standby(intent: intents.Intent, successor: ContainerSummary, *, go_on: bool) -> Step:
    """Never remove a running successor: kubelet could see its exit, and the agent that held it may be dead."""
    if successor.state is ContainerState.RUNNING:
        return Step(StepKind.STOP, StepReason.OLD_RUNS, intent.old)
    if successor.state is ContainerState.UNKNOWN:
        return Step(StepKind.WAIT, StepReason.STATE_UNKNOWN, successor.id)
    if go_on:
        return Step(StepKind.START, StepReason.ON_STANDBY, successor.id)
    return Step(StepKind.REMOVE, StepReason.UNDOING, successor.id)


def _wait_for_kubelet(others: Sequence[ContainerSummary]) -> Step:
    newest = others[-1]
    if newest.state is ContainerState.RUNNING:
        return Step(StepKind.DONE, StepReason.ADOPTED, newest.id)
    return Step(StepKind.WAIT, StepReason.KUBELET_STARTS_ITS_OWN, newest.id)


def _bring_up(successor: ContainerSummary) -> Step:
    if successor.state is ContainerState.CREATED:
        return Step(StepKind.START, StepReason.SUCCESSOR_READY, successor.id)
    if successor.state is ContainerState.RUNNING:
        return Step(StepKind.DONE, StepReason.SWAPPED, successor.id)
    return Step(StepKind.WAIT, StepReason.STATE_UNKNOWN, successor.id)


def _unmistakable(done: Step, containers: Iterable[ContainerSummary]) -> Step:
    """Return this end, or first the removal of a predecessor that was created later: the clock was set back since.

    Kubelet goes by the time of creation (``containerStatusByCreated`` in kuberuntime_container.go, 1.36): it would show
    that the container has ended for good, try to create another one, and fail a ``Never`` pod.
    """
    current = next(view for view in containers if view.id == done.container)
    for view in containers:
        is_before = view.state is ContainerState.EXITED and view.attempt < current.attempt
        if is_before and view.created_at > current.created_at:
            return Step(StepKind.REMOVE, StepReason.SEEMS_NEWER, view.id)
    return done


def _without_successor(
    intent: intents.Intent,
    *,
    old: ContainerSummary | None,
    newer: Sequence[ContainerSummary],
    creates: bool,
    can_clone: bool,
    kubelet_first: bool,
) -> Step:
    old_state = old.state if old is not None else ContainerState.EXITED
    stop_now = old_state is ContainerState.RUNNING and (newer or intent.order is intents.SwapOrder.STOP_FIRST)
    if stop_now:
        return Step(StepKind.STOP, StepReason.OLD_RUNS, intent.old)
    if newer:
        # It ran and ended before the listing. Kubelet decides what happens next, by the pod's own policy.
        return Step(StepKind.DONE, StepReason.SUCCESSOR_EXITED, newer[-1].id)
    if old_state in (ContainerState.CREATED, ContainerState.UNKNOWN):
        return Step(StepKind.WAIT, StepReason.STATE_UNKNOWN, intent.old)
    if not creates:
        # It may have ended for good. Kubelet decides, by the pod's own policy.
        return Step(StepKind.DONE, StepReason.UNDONE)
    if not can_clone:
        return Step(StepKind.DONE, StepReason.NOTHING_TO_CLONE)
    if kubelet_first and old_state is ContainerState.EXITED:
        return Step(StepKind.WAIT, StepReason.KUBELET_CREATES, intent.old)
    return Step(StepKind.CREATE, StepReason.NO_SUCCESSOR)


def orphans(seen: Iterable[ContainerSummary], *, owned: frozenset[str], now: float) -> tuple[intents.Intent, ...]:
    """Return intents that clear up successors whose own intent is lost (journal deleted, disk replaced).

    A CREATED one that is left alone next to a running container makes kubelet start a third; a running one may have
    been held next to a frozen old one. Carry these intents out with ``Resolution.UNDO``: it removes a waiting successor
    if the old container runs, starts it if nothing does, and stops the old one if both run. ``owned`` are the ids of
    intents that the journal still has. ``now`` is Unix time.
    """
    views = list(seen)
    found = []
    for view in views:
        if view.restart_id is None or view.restart_id in owned:
            continue
        older = [v for v in views if v.ref == view.ref and v.attempt < view.attempt]
        if not older:
            continue
        old = max(older, key=lambda v: v.generation)
        both_run = view.state is ContainerState.RUNNING and old.state is ContainerState.RUNNING
        if view.state is not ContainerState.CREATED and not both_run:
            continue
        found.append(
            intents.Intent(
                id=view.restart_id,
                target=view.ref,
                sandbox_id=view.sandbox_id,
                old=old.id,
                old_attempt=old.attempt,
                order=intents.SwapOrder.START_FIRST,
                reason="Orphan",
                created_at=now,
            )
        )
    return tuple(found)
