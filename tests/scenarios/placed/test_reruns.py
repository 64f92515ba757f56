"""Reruns of whole pods under kubelet: at any moment of its relist, each container runs once, and in order."""

import asyncio
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from hack.devnode import node
from hack.devnode.observer import Observer, Seen
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, SandboxId
from kubemend.agent.restart import reservations
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts.plan_execution import AnyExecution
from kubemend.agent.restarts.restart_plan import PodRestartPlan, RestartPlan
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.devnode.looks import Looks
from tests.scenarios import parts, training

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

ROUNDS = 10
CHANGES = 5 + 3 + 2 + 3 * 2
"""The changing calls of one rerun: reserve names, remove the old, release names, create and start."""


@dataclass
class Rounds:
    """Rerun one pod repeatedly, and check each rerun from outside."""

    name: str
    observer: Observer
    made: parts.Parts
    seen: Seen

    async def rerun(self, carry_out: Callable[[AnyExecution], Awaitable[Outcome]]) -> tuple[RestartPlan, Outcome]:
        """Rerun the pod in this way, and check the result."""
        async with self.made.dependencies.events.subscribe() as events:
            restart = await self.made.prepared(self.seen.uid, Strategy.RERUN)
            outcome, checks = await self.made.settled(restart, await carry_out(restart))
            happened = [events.get_nowait() for _ in range(events.qsize())]
        assert outcome.result is Result.RERUN, outcome
        assert outcome.notes == ()
        assert {check.state.value for check in checks} == {"passed"}, checks
        before, self.seen = self.seen, await self.observer.see(self.name)
        await self._check(before, happened)
        return restart.plan, outcome

    async def _has_said_something(self, name: str, after: Seen) -> None:
        async with asyncio.timeout(training.DEADLINE):
            while True:
                if self.observer.log(self.name, after.uid, container=name, restart=after.restart_counts[name]):
                    return
                await asyncio.sleep(0.05)

    async def _check(self, before: Seen, happened: list[ContainerEvent]) -> None:
        after = self.seen
        started = Counter(event.container.ref.name for event in happened if event.kind is EventKind.STARTED)
        assert started == Counter(("prepare", "shipper", "trainer")), happened
        assert after.init_runs == before.init_runs + 1
        assert after.restart_counts == {name: count + 1 for name, count in before.restart_counts.items()}
        assert {name: len(ids) for name, ids in after.running.items()} == {"trainer": 1, "shipper": 1}
        assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
        times = [await self.observer.times(ContainerId(after.container_ids[each])) for each in started]
        (_, prepared), (ships, _), (trains, _) = times
        assert 0 < prepared <= ships <= trains
        for name in after.running:
            await self._has_said_something(name, after)
        left = await self.made.dependencies.runtime.list_containers(sandbox_id=SandboxId(after.sandbox))
        assert not [view for view in left if reservations.reserves(view)], "all names are released"


@pytest_asyncio.fixture(loop_scope="package")
async def rounds(dev: node.DevNode, observer: Observer) -> AsyncIterator[Rounds]:
    """A training pod whose kubelet relists as usual."""
    async with training.pod(dev, observer, "rounds", gpus=0) as first, parts.on(dev) as made:
        yield Rounds(name="rounds", observer=observer, made=made, seen=first)


@pytest.mark.long
async def test_rerun_at_random_moments_of_kubelets_relist(rounds: Rounds) -> None:
    """Kubelet relists once a second, independent of kubemend's steps."""
    chance = random.Random(20)
    for _ in range(ROUNDS):
        await asyncio.sleep(chance.random())
        await rounds.rerun(lambda restart: restart.carry_out())


class Looking(CriClient):
    """A runtime that lets kubelet relist just before one of the changes that are made through it."""

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


@pytest.mark.long  # the matrix has each step of a rerun with a kubelet that acts at once, or late
@pytest.mark.parametrize("waits", [pytest.param(False, id="side-by-side"), pytest.param(True, id="kubelet-first")])
async def test_relist_before_each_change_of_a_rerun(
    dev: node.DevNode, looks: Looks, rounds: Rounds, waits: bool
) -> None:
    """Kubelet acts on its relist while the rerun continues, or before it does."""
    changes = 0
    for before in range(1, CHANGES + 1):
        look = looks.relist if waits else looks.glance
        async with Looking(str(dev.layout.containerd_socket), look=look, before=before) as runtime:
            tools = ActuatorContext(
                runtime=runtime,
                events=rounds.made.dependencies.events,
                files=HostFiles(symlink_dir=dev.layout.container_log_links),
            )
            actuator = PodActuator(tools, pods=rounds.made.dependencies.pods)
            await looks.hold()
            await rounds.rerun(functools.partial(_let_look_after, actuator=actuator, looks=looks))
            changes = max(changes, runtime.changes)
    assert changes == CHANGES


async def _let_look_after(restart: AnyExecution, *, actuator: PodActuator, looks: Looks) -> Outcome:
    assert isinstance(restart.plan, PodRestartPlan)
    try:
        return await actuator.carry_out(restart.plan.intent, successor_specs=restart.plan.successor_specs)
    finally:
        await looks.release()
