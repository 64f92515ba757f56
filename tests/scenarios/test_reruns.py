"""Reruns of whole pods under kubelet's eyes: wherever its look falls, each container is run once, and in order."""

import asyncio
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent.actuator.host_files import HostFiles
from agent.actuator.outcomes import Outcome, Result
from agent.actuator.rerun import RerunActuator
from agent.actuator.tools import Tools
from agent.cri.client import CriClient
from agent.cri.events import ContainerEvent, EventKind
from agent.engine.acts import Act, PodAct
from agent.model.workloads import ContainerId, SandboxId
from agent.restart import reservations
from agent.restart.intents import Strategy
from common.pb.runtime.v1 import api_pb2
from hack.devnode import node
from hack.devnode.observer import Observer, Seen
from tests.scenarios import parts, training

pytestmark = pytest.mark.devnode

ROUNDS = 25
CHANGES = 5 + 3 + 2 + 3 * 2
"""Calls of one rerun that change something: take names, remove the old, give names back, create and start."""


@dataclass
class Rounds:
    """Reruns of one pod, one after another, each looked at from outside."""

    name: str
    observer: Observer
    made: parts.Parts
    seen: Seen

    async def rerun(self, carry_out: Callable[[PodAct], Awaitable[Outcome]]) -> tuple[Act, Outcome]:
        """Rerun the pod so, and check what has become of it."""
        async with self.made.outside.events.subscribe() as events:
            act = await self.made.prepared(self.seen.uid, Strategy.RERUN)
            assert isinstance(act, PodAct)
            outcome, checks = await self.made.settled(act, await carry_out(act))
            happened = [events.get_nowait() for _ in range(events.qsize())]
        assert outcome.result is Result.RERUN, outcome
        assert outcome.notes == ()
        assert {check.state.value for check in checks} == {"passed"}, checks
        before, self.seen = self.seen, await self.observer.see(self.name)
        await self._check(before, happened)
        return act, outcome

    async def _has_said_something(self, name: str, after: Seen) -> None:
        async with asyncio.timeout(training.DEADLINE):
            while True:
                if self.observer.log(self.name, after.uid, container=name, restart=after.restart_counts[name]):
                    return
                await asyncio.sleep(0.05)

    async def _check(self, before: Seen, happened: list[ContainerEvent]) -> None:
        after = self.seen
        started = Counter(event.container.ref.name for event in happened if event.kind is EventKind.STARTED)
        assert started == Counter(("prepare", "shipper", "trainer"))
        assert after.init_runs == before.init_runs + 1
        assert after.restart_counts == {name: count + 1 for name, count in before.restart_counts.items()}
        assert {name: len(ids) for name, ids in after.running.items()} == {"trainer": 1, "shipper": 1}
        assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
        times = [await self.observer.times(ContainerId(after.container_ids[each])) for each in started]
        (_, prepared), (ships, _), (trains, _) = times
        assert 0 < prepared <= ships <= trains
        for name in after.running:
            await self._has_said_something(name, after)
        left = await self.made.outside.runtime.list_containers(sandbox_id=SandboxId(after.sandbox))
        assert not [view for view in left if reservations.reserves(view)], "all names are given back"


@pytest.fixture
async def rounds(dev: node.DevNode, observer: Observer) -> AsyncIterator[Rounds]:
    """A training pod whose kubelet looks as usual."""
    async with training.pod(dev, observer, "rounds", gpus=0) as first, parts.on(dev) as made:
        yield Rounds(name="rounds", observer=observer, made=made, seen=first)


async def test_at_random_moments_of_kubelets_look(rounds: Rounds) -> None:
    """A real kubelet has its own second; the stand-in is brought out of step by looks of its own."""
    chance = random.Random(20)
    for _ in range(ROUNDS):
        await asyncio.sleep(chance.random())
        await rounds.rerun(lambda act: act.carry_out())


class Looking(CriClient):
    """A runtime that lets kubelet look just before one of the changes that are made through it."""

    def __init__(self, endpoint: str, *, look: Callable[[], Awaitable[None]], before: int) -> None:
        super().__init__(endpoint)
        self.changes = 0
        self._look = look
        self._before = before

    async def create_container(
        self, *, sandbox_id: SandboxId, config: api_pb2.ContainerConfig, sandbox_config: api_pb2.PodSandboxConfig
    ) -> ContainerId:
        await self._change()
        return await super().create_container(sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)

    async def start_container(self, container_id: ContainerId) -> None:
        await self._change()
        await super().start_container(container_id)

    async def remove_container(self, container_id: ContainerId) -> None:
        await self._change()
        await super().remove_container(container_id)

    async def _change(self) -> None:
        self.changes += 1
        if self.changes == self._before:
            await self._look()


@pytest.mark.parametrize("waits", [False, True], ids=["side-by-side", "kubelet-first"])
async def test_a_look_before_each_change_of_ours(dev: node.DevNode, rounds: Rounds, waits: bool) -> None:
    """Kubelet acts on what it has seen while we go on, or before we do."""
    control: Any = dev.kubelet.control
    if control is None:
        pytest.skip("nobody tells a real kubelet when to look")
    changes = 0
    for before in range(1, CHANGES + 1):
        look = control.relist if waits else control.look
        async with Looking(str(dev.layout.containerd_socket), look=look, before=before) as runtime:
            tools = Tools(
                runtime=runtime,
                events=rounds.made.outside.events,
                files=HostFiles(symlink_dir=dev.layout.container_log_links),
            )
            actuator = RerunActuator(tools, pods=rounds.made.outside.pods)
            await control.hold()
            await rounds.rerun(functools.partial(_let_look_after, actuator=actuator, control=control))
            changes = max(changes, runtime.changes)
    assert changes == CHANGES


async def _let_look_after(act: PodAct, *, actuator: RerunActuator, control: Any) -> Outcome:
    outcome = await actuator.carry_out(act.intent, materials=act.materials)
    await control.release()
    return outcome
