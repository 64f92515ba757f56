"""Explore every state that a model can reach, in any order of its moves."""

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final

from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart import intents, reset, steps
from tests.unit.restart.simulation import Rule, Simulation

Move = Callable[[Simulation], object]

_FACTS: Final = [each.name for each in dataclasses.fields(reset.Known) if each.name != "exits"]


def reachable(start: Simulation, moves: Iterable[Move]) -> Iterator[Simulation]:
    """Yield one simulation of each state, breadth first. The simulations are shared: copy one before moving it on.

    Only the hashes of states are kept, because there are hundreds of thousands.
    """
    moves = tuple(moves)
    start = start.copied()
    start.rule = _remembered(start.rule)
    seen = {hash(key(start))}
    waiting = deque([start])
    while waiting:
        simulation = waiting.popleft()
        yield simulation
        for move in moves:
            after = simulation.copied()
            move(after)
            if after != simulation and (found := hash(key(after))) not in seen:
                seen.add(found)
                waiting.append(after)


def _remembered(rule: Rule) -> Rule:
    """Return the rule, which is pure, for one intent; it decides only once for the same facts.

    Most states differ from others only in what kubelet has done.
    """
    decided: dict[Hashable, Sequence[steps.Step]] = {}

    def remembering(
        intent: intents.PodIntent, seen: Sequence[ContainerSummary], known: reset.Known
    ) -> Sequence[steps.Step]:
        ends = tuple([(container, end.code, end.at) for container, end in known.exits.items()])
        facts = (tuple(map(_identity, seen)), ends, *(getattr(known, name) for name in _FACTS))
        if facts not in decided:
            decided[facts] = rule(intent, seen, known)
        return decided[facts]

    return remembering


def _identity(view: ContainerSummary) -> Hashable:
    """Return what distinguishes a simulation's views: an id has its container's name and time. It hashes fast."""
    return view.id, view.attempt, view.state._value_


def key(simulation: Simulation) -> Hashable:
    """Return what two simulations in the same state share: everything, except that of times only the order counts."""
    kubelet = simulation.kubelet
    lists = (simulation.containers, kubelet.asked, kubelet.saw, kubelet.shows, simulation.sees)
    views = {view.id: view for found in lists for view in found or ()}
    times = {view.created_at for view in views.values()} | {end.at for end in simulation.exits.values()}
    rank = {at: place for place, at in enumerate(sorted(times))}
    name = {each: (view.ref.name, view.restart_id, rank[view.created_at]) for each, view in views.items()}

    def shown(found: Iterable[ContainerSummary] | None) -> Hashable:
        return (
            tuple([(name[view.id], view.attempt, view.state._value_) for view in found]) if found is not None else None
        )

    def named(container: str | None) -> Hashable:
        return name.get(ContainerId(container), container) if container is not None else None

    return (
        shown(simulation.containers),
        frozenset((named(container), rank[end.at]) for container, end in simulation.exits.items()),
        frozenset(simulation.started.items()),
        frozenset([(named(container), state._value_) for container, state in kubelet.recorded.items()]),
        (kubelet.found_news, kubelet.woken),
        tuple(map(named, kubelet.listed)),
        shown(kubelet.asked),
        shown(kubelet.saw),
        shown(kubelet.shows),
        tuple(kubelet.to_start),
        named(kubelet.created),
        frozenset(simulation.taken),
        shown(simulation.sees),
        tuple(
            [
                (step.kind._value_, step.reason, named(step.container), step.name, step.attempt)
                for step in simulation.todo
            ]
        ),
        tuple(simulation.starts),
        simulation.done,
    )
