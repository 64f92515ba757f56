"""The reset: take every container of a pod away, and let kubelet rerun it with fresh config. Pure.

Kubelet (1.36, ``computeInitContainerActions``) runs the init containers again only where it finds no main container
created or running, and no init container or sidecar either: the last one of these that it finds decides what comes
next. So exited containers go first, while the mains still run (kubelet ignores finished init containers then, but
restarts a sidecar that it finds exited); then all others at once.

It may look in between, or act on a look from before. What it then starts too early is out of turn: a container that
stands in the spec after an init container that has not ended again. Such a one goes, too.

Kubelet syncs a pod when two of its looks differ (``generateEvents`` in ``pkg/kubelet/pleg/generic.go``). What comes and
goes between two of them it never hears of: the pod would stay empty until its timer, 60 to 90 seconds. So the last
things go when it has seen them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.workloads import ContainerId, ContainerRole, ContainerState, ContainerView
from agent.restart import intents
from agent.restart.steps import LIVE, Resolution, Step, StepKind, Why


@dataclass(frozen=True, slots=True)
class Exit:
    """How and when a container ended; the time is in Unix nanoseconds, by the runtime's clock."""

    code: int
    at: int


@dataclass(frozen=True, slots=True)
class Known:
    """What a listing does not tell.

    ``exits``: how containers ended. ``started`` and ``running``: those that kubelet's status shows so. ``noticed``:
    those that its status shows in whatever state, or that are too old for it not to have seen them. ``taken``: names
    (with attempts) that could not be reserved, because somebody else holds them. ``afterwards``: everything had been
    started before, and this is a look at what has come of it. ``overdue``: kubelet has had enough time for that.
    """

    exits: Mapping[ContainerId, Exit] = field(default_factory=lambda: MappingProxyType({}))
    started: frozenset[ContainerId] = frozenset()
    running: frozenset[ContainerId] = frozenset()
    noticed: frozenset[ContainerId] = frozenset()
    taken: frozenset[tuple[str, int]] = frozenset()
    afterwards: bool = False
    overdue: bool = False


_NOTHING = Known()
_NANOSECONDS = 1_000_000_000  # in a second


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerView],
    *,
    known: Known = _NOTHING,
    resolution: Resolution = Resolution.FINISH,
) -> tuple[Step, ...]:
    """Return the next steps, which may be taken side by side, given every container of the pod; at least one.

    A WAIT or a DONE comes alone. Invariant (property-tested): whatever is taken away, and whenever the agent dies,
    kubelet brings the pod up by what it sees, without its timer.
    """
    seen = tuple(seen)
    if resolution is Resolution.UNDO and is_untouched(intent, seen):
        return (Step(StepKind.DONE, Why.UNDONE),)
    return clearing_for_kubelet(intent, seen, known=known) or (Step(StepKind.DONE, Why.CLEARED),)


def is_untouched(intent: intents.PodIntent, seen: Iterable[ContainerView]) -> bool:
    """Whether nothing has been taken away yet, so that the restart can be left undone."""
    return {view.id for view in seen if view.ref.name in intent.names} == intent.old


def clearing(intent: intents.PodIntent, seen: Sequence[ContainerView], *, known: Known) -> tuple[Step, ...]:
    """Return what must still be taken away; nothing when none of the old, and nothing out of turn, is left."""
    old = [view for view in seen if view.id in intent.old]
    exited = [view for view in old if view.state is ContainerState.EXITED]
    if exited and len(exited) < len(old):
        return _removals(exited, Why.OLD_LEFT)
    running = [view for view in old if view.state is ContainerState.RUNNING]
    if running and intent.grace_seconds > 0:
        return tuple(Step(StepKind.STOP, Why.OLD_RUNS, view.id, view.ref.name) for view in running)
    return _removals(old, Why.OLD_LEFT) + _removals(_out_of_turn(intent, seen, known=known), Why.OUT_OF_TURN)


def clearing_for_kubelet(intent: intents.PodIntent, seen: Sequence[ContainerView], *, known: Known) -> tuple[Step, ...]:
    """Return the same where kubelet is to start what is missing; a WAIT while it would not hear of what is removed.

    It finds gone what it has seen, if that was live, and is at restarting it, if that had ended. Of an init container
    that stays it hears the end. Of each name it shows the newest alone, which it makes when it has seen the end of the
    one before.
    """
    todo = clearing(intent, seen, known=known)
    going = {step.container for step in todo if step.kind is StepKind.REMOVE}
    inits = {planned.name for planned in intent.plan if planned.role is ContainerRole.INIT}
    stays = (view for view in seen if view.id not in going)
    if any(view.id in intent.old or (view.ref.name in inits and view.state in LIVE) for view in stays):
        return todo
    newest = {view.ref.name: view for view in sorted(seen, key=lambda view: view.created_at)}
    for view in newest.values():
        if view.id in going and view.id not in known.noticed:
            return (Step(StepKind.WAIT, Why.NOT_SHOWN, view.id, view.ref.name),)
    return todo


def successors(intent: intents.PodIntent, seen: Iterable[ContainerView], name: str) -> list[ContainerView]:
    """Return the containers of a name that are not old, oldest first."""
    found = (view for view in seen if view.ref.name == name and view.id not in intent.old)
    return sorted(found, key=lambda view: (view.created_at, view.attempt))


def _removals(views: Iterable[ContainerView], why: Why) -> tuple[Step, ...]:
    return tuple(Step(StepKind.REMOVE, why, view.id, view.ref.name) for view in views)


def _out_of_turn(intent: intents.PodIntent, seen: Sequence[ContainerView], *, known: Known) -> list[ContainerView]:
    """Return what was started although an init container before it had not been run again, or was running once more.

    The latter comes of kubelet looking between the creation and the start of ours: it then starts another one, and
    what that one prepares must be ready before anything uses it. An init container of whose end we know nothing yet
    counts as run: no kill on a guess. Times from before the restart began (the clock was set back) tell nothing.
    """
    found: list[ContainerView] = []
    its_turn, began, ended = True, int(intent.created_at * _NANOSECONDS), 0
    for planned in intent.plan:
        made = successors(intent, seen, planned.name)
        found += [view for view in made if not its_turn or began <= view.created_at < ended]
        if planned.role is ContainerRole.INIT and its_turn:
            its_turn = _has_run(made, known=known)
            exits = [known.exits[view.id].at for view in made if view.id in known.exits]
            ended = max([ended, *exits])
    return found


def _has_run(made: Sequence[ContainerView], *, known: Known) -> bool:
    ended = [view for view in made if view.state not in LIVE]
    succeeded = any(view.id not in known.exits or known.exits[view.id].code == 0 for view in ended)
    return succeeded and len(ended) == len(made)
