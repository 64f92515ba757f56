"""The swap: stop container n, create n+1 from n's own config, start it. Pure: what is seen in, the next step out.

Kubelet works on the same pod at the same time and may win any part of it. So a swap is not a list of steps but a
rule from what the runtime shows to the one next step; the same rule carries on after a crash, after a lost answer
and after a race. It ends when exactly one container newer than the old one lives and the old one does not run.

Facts behind it (measured on kubelet 1.36, docs/architecture.md): kubelet only looks at the newest container of a
name, never kills an older duplicate, adopts a successor that it did not create, and takes a newest container in
CREATED for one that it should start itself.
"""

from collections.abc import Collection, Iterable, Sequence

from agent.model.workloads import ContainerId, ContainerState, ContainerView
from agent.restart import intents, steps
from agent.restart.steps import Resolution, Step, StepKind, Why


def next_step(
    intent: intents.Intent,
    seen: Iterable[ContainerView],
    *,
    resolution: Resolution = Resolution.FINISH,
    can_clone: bool = True,
    stays: Collection[ContainerId] = (),
) -> Step:
    """Return the one next step, given every container of the target's name that the runtime shows now.

    ``can_clone`` is False when the old container's config is not at hand (removed before a replay). Of ``stays`` are
    successors that a round has let run, or is about to: a copy that kubelet makes of one goes, and not what has run.

    Invariants (property-tested): a STOP only ever names the old container; a REMOVE only ever names a container of this
    intent, or a copy by kubelet of one that stays; START is never returned while the old one runs, unless the order is
    START_FIRST (then the old one is frozen and the successor held); CREATE is never returned while a newer container
    exists.
    """
    containers = sorted(seen, key=lambda view: (view.created_at, view.attempt))
    old = next((view for view in containers if view.id == intent.old), None)
    newer = [view for view in containers if view.attempt > intent.old_attempt and view.id != intent.old]
    live = [view for view in newer if view.state in steps.LIVE]
    ours = [view for view in live if view.restart_id == intent.id]
    others = [view for view in live if view.restart_id != intent.id]
    old_runs = old is not None and old.state is ContainerState.RUNNING

    if ours and others and ours[-1].id in stays and all(view.restart_id is None for view in others):
        return Step(StepKind.REMOVE, Why.OUT_OF_TURN, others[-1].id)
    if ours and others:
        return Step(StepKind.REMOVE, Why.KUBELET_WON, ours[-1].id)
    if ours and old_runs and intent.order is intents.Order.START_FIRST:
        return _beside_the_old(intent, ours[-1], go_on=resolution is Resolution.FINISH and can_clone)
    if resolution is Resolution.UNDO and old_runs and not others:
        return Step(StepKind.REMOVE, Why.UNDOING, ours[-1].id) if ours else Step(StepKind.DONE, Why.UNDONE)
    if live and old_runs:
        return Step(StepKind.STOP, Why.OLD_RUNS, intent.old)
    if others:
        return _wait_for_kubelet(others)
    if ours:
        return _bring_up(ours[-1])
    return _without_successor(intent, old=old, newer=newer, can_clone=can_clone)


def _beside_the_old(intent: intents.Intent, successor: ContainerView, *, go_on: bool) -> Step:
    """A successor that runs is never taken back: kubelet could see its exit, and whoever held it may be dead."""
    if successor.state is ContainerState.RUNNING:
        return Step(StepKind.STOP, Why.OLD_RUNS, intent.old)
    if successor.state is ContainerState.UNKNOWN:
        return Step(StepKind.WAIT, Why.STATE_UNKNOWN, successor.id)
    if go_on:
        return Step(StepKind.START, Why.HELD_BESIDE_OLD, successor.id)
    return Step(StepKind.REMOVE, Why.UNDOING, successor.id)


def _wait_for_kubelet(others: Sequence[ContainerView]) -> Step:
    newest = others[-1]
    if newest.state is ContainerState.RUNNING:
        return Step(StepKind.DONE, Why.ADOPTED, newest.id)
    return Step(StepKind.WAIT, Why.KUBELET_STARTS_ITS_OWN, newest.id)


def _bring_up(successor: ContainerView) -> Step:
    if successor.state is ContainerState.CREATED:
        return Step(StepKind.START, Why.SUCCESSOR_READY, successor.id)
    if successor.state is ContainerState.RUNNING:
        return Step(StepKind.DONE, Why.SWAPPED, successor.id)
    return Step(StepKind.WAIT, Why.STATE_UNKNOWN, successor.id)


def _without_successor(
    intent: intents.Intent, *, old: ContainerView | None, newer: Sequence[ContainerView], can_clone: bool
) -> Step:
    old_state = old.state if old is not None else ContainerState.EXITED
    stop_now = old_state is ContainerState.RUNNING and (newer or intent.order is intents.Order.STOP_FIRST)
    if stop_now:
        return Step(StepKind.STOP, Why.OLD_RUNS, intent.old)
    if newer:
        # It ran and ended before we looked. What happens next is kubelet's to decide, by the pod's own policy.
        return Step(StepKind.DONE, Why.SUCCESSOR_EXITED, newer[-1].id)
    if old_state in (ContainerState.CREATED, ContainerState.UNKNOWN):
        return Step(StepKind.WAIT, Why.STATE_UNKNOWN, intent.old)
    if not can_clone:
        return Step(StepKind.DONE, Why.NOTHING_TO_CLONE)
    return Step(StepKind.CREATE, Why.NO_SUCCESSOR)


def orphans(seen: Iterable[ContainerView], *, owned: frozenset[str], now: float) -> tuple[intents.Intent, ...]:
    """Return intents that clear up successors whose own intent is lost (journal deleted, disk replaced).

    A CREATED one that is left alone beside a running container makes kubelet start a third; one that runs may have
    been held beside a frozen old one. Carry these intents out with ``Resolution.UNDO``: it removes a waiting successor
    where the old container runs, starts it where nothing does, and stops the old one where both run. ``owned`` are
    the ids of intents that the journal still knows. ``now`` is Unix time.
    """
    views = list(seen)
    found = []
    for view in views:
        if view.restart_id is None or view.restart_id in owned:
            continue
        older = [v for v in views if v.ref == view.ref and v.attempt < view.attempt]
        if not older:
            continue
        old = max(older, key=lambda v: (v.created_at, v.attempt))
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
                order=intents.Order.START_FIRST,
                reason="Orphan",
                created_at=now,
            )
        )
    return tuple(found)
