"""Explore every state that a model can reach, in any order of its moves."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace

from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from tests.unit.restart.worlds import World

Move = Callable[[World], object]


def reachable(start: World, moves: Iterable[Move]) -> Iterator[World]:
    """Yield one world of each state, breadth first. The worlds are shared: copy one before moving it on."""
    moves = tuple(moves)
    seen = {key(start)}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        yield world
        for move in moves:
            after = copied(world)
            move(after)
            if (found := key(after)) not in seen:
                seen.add(found)
                waiting.append(after)


def copied(world: World) -> World:
    """Return a world that can be moved on separately."""
    kubelet = replace(
        world.kubelet,
        recorded=dict(world.kubelet.recorded),
        listed=list(world.kubelet.listed),
        asked=list(world.kubelet.asked) if world.kubelet.asked is not None else None,
        to_start=list(world.kubelet.to_start),
    )
    return replace(
        world,
        containers=list(world.containers),
        exits=dict(world.exits),
        started=dict(world.started),
        kubelet=kubelet,
        taken=set(world.taken),
        todo=list(world.todo),
        we_started=list(world.we_started),
        starts=list(world.starts),
    )


def key(world: World) -> Hashable:
    """Return what two worlds in the same state share: everything, except that of times only the order counts."""
    kubelet = world.kubelet
    views = [*world.containers, *(kubelet.asked or ()), *(kubelet.saw or ()), *kubelet.shows, *(world.sees or ())]
    times = {view.created_at for view in views} | {end.at for end in world.exits.values()}
    rank = {at: place for place, at in enumerate(sorted(times))}
    name = {view.id: (view.ref.name, view.restart_id, rank[view.created_at]) for view in views}

    def shown(found: Iterable[ContainerSummary] | None) -> Hashable:
        return tuple((name[view.id], view.attempt, view.state) for view in found) if found is not None else None

    def named(container: str | None) -> Hashable:
        return name.get(ContainerId(container), container) if container is not None else None

    return (
        shown(world.containers),
        frozenset((named(container), rank[end.at]) for container, end in world.exits.items()),
        frozenset(world.started.items()),
        frozenset((named(container), state) for container, state in kubelet.recorded.items()),
        (kubelet.found_news, kubelet.woken),
        tuple(map(named, kubelet.listed)),
        shown(kubelet.asked),
        shown(kubelet.saw),
        shown(kubelet.shows),
        tuple(kubelet.to_start),
        named(kubelet.created),
        frozenset(world.taken),
        shown(world.sees),
        tuple((step.kind, step.why, named(step.container), step.name, step.attempt) for step in world.todo),
        tuple(world.starts),
        world.done,
    )
