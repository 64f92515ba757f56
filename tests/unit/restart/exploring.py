"""Explore every state that a model can reach, in any order of its moves."""

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator

from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from tests.unit.restart.worlds import World

Move = Callable[[World], object]


def reachable(start: World, moves: Iterable[Move]) -> Iterator[World]:
    """Yield one world of each state, breadth first. The worlds are shared: copy one before moving it on.

    Only the hashes of states are kept, because there are hundreds of thousands.
    """
    moves = tuple(moves)
    seen = {hash(key(start))}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        yield world
        for move in moves:
            after = copied(world)
            move(after)
            if after != world and (found := hash(key(after))) not in seen:
                seen.add(found)
                waiting.append(after)


def copied(world: World) -> World:
    """Return a world that can be moved on separately."""
    made, kubelet = copy.copy(world), copy.copy(world.kubelet)
    kubelet.recorded, kubelet.listed, kubelet.to_start = (
        kubelet.recorded.copy(),
        kubelet.listed.copy(),
        kubelet.to_start.copy(),
    )
    kubelet.asked = kubelet.asked.copy() if kubelet.asked is not None else None
    made.containers, made.exits, made.started = made.containers.copy(), made.exits.copy(), made.started.copy()
    made.taken, made.todo = made.taken.copy(), made.todo.copy()
    made.we_started, made.starts = made.we_started.copy(), made.starts.copy()
    made.kubelet = kubelet
    return made


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
