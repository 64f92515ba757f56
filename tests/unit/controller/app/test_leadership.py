"""Terms of leadership from begin to end, without agents or their hub."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from kubemend.common.kube import client
from kubemend.common.kube.transport import Json
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.app.leadership import LeaderRelay, LeadershipTerms
from kubemend.controller.coordinator.dependencies import NoJobSets
from kubemend.controller.hub.ports import Session
from kubemend.controller.leader.election import Election, Term, Timing
from kubemend.controller.leader.lease import EPOCH
from kubemend.controller.model.members import NodeName
from tests import eventually
from tests.control_plane import DEADLINES, Tenant
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import Agent, CoordinatorEnv, RestartsHere

SELDOM = Timing(lease=3 * 3600.0, renew=2 * 3600.0, retry=3600.0)
"""Long enough that no Lease is renewed during a test, except on demand."""


class Hub:
    """A hub stand-in: whether agents may connect, and the subscriptions left when that ended."""

    def __init__(self, env: CoordinatorEnv) -> None:
        self.epochs: list[int] = []
        self.subscribed_at_end: int | None = None
        self.agents: dict[NodeName, Session] = {}
        self._members = env.members

    def lead(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def stand_by(self) -> None:
        self.subscribed_at_end = len(self._members.listeners)

    def sessions(self) -> Mapping[NodeName, Session]:
        return self.agents


class Obeying(Agent):
    """An agent that rejects epochs lower than it has accepted, and answers Sync with a Hello."""

    def __init__(self, node: NodeName, *, obeyed: int, hub: Hub, relay: LeaderRelay) -> None:
        super().__init__(node)
        self.obeyed = obeyed
        self.answered: list[int] = []
        self._hub = hub
        self._relay = relay

    def send(self, message: pb.HubMessage | bytes) -> bool:
        epoch = self._hub.epochs[-1]
        if epoch >= self.obeyed and isinstance(message, pb.HubMessage) and message.HasField("sync"):
            self.obeyed = epoch
            asyncio.get_running_loop().call_soon(self._answer)
        return super().send(message)

    def connects(self) -> None:
        self._hub.agents[self.node] = self
        self._relay.hello(self, pb.Hello(epoch=self.obeyed))

    def _answer(self) -> None:
        self._relay.hello(self, pb.Hello(epoch=self.obeyed))
        self.answered.append(self.obeyed)


class Client(client.KubeClient):
    """A client that records the epochs written into an existing Lease."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig=kubeconfig, deadlines=DEADLINES)
        self.epochs: list[str] = []

    async def update(self, path: str, body: Json, *, attempts: int = 4) -> Json:
        self.epochs.append(body["metadata"]["annotations"][EPOCH])
        return await super().update(path, body, attempts=attempts)


class Listing(RestartsHere):
    """Restart objects whose list blocks until ``listed``."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = asyncio.Event()
        self.waited_for = asyncio.Event()

    async def wait_synced(self) -> None:
        self.waited_for.set()
        await self.listed.wait()


class JobSetsToRun(NoJobSets):
    """JobSets that record whether they run."""

    def __init__(self) -> None:
        self.runs = asyncio.Event()

    async def run(self) -> None:
        self.runs.set()
        await super().run()


@contextlib.asynccontextmanager
async def running(work: asyncio.Task[None]) -> AsyncIterator[None]:
    """Run the task for the length of the block."""
    try:
        yield
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


async def test_term_end_stops_agents_messages_first() -> None:
    env = CoordinatorEnv(builders.gang(2))
    hub, relay = Hub(env), LeaderRelay()
    leading = LeadershipTerms(dependencies=env.dependencies, hub=hub, relay=relay)  # type: ignore[arg-type]
    async with running(asyncio.create_task(leading(Term(epoch=4, renewed_at=0.0)))):
        await eventually.true(lambda: hub.epochs == [4])
        assert env.dependencies.metrics.leads._value.get() == 1
    assert hub.subscribed_at_end == 1  # the coordinator still existed
    assert env.members.listeners == []
    assert env.dependencies.metrics.leads._value.get() == 0
    relay.received(Agent(NodeName("n")), pb.AgentMessage())  # has no effect


async def test_leader_raises_epoch_above_each_accepted_one_writing_once(
    tenant: Tenant,
) -> None:
    env = CoordinatorEnv(builders.gang(2))
    hub, relay = Hub(env), LeaderRelay()
    async with Client(tenant.kubeconfig) as api:
        election = Election(
            api=api,
            namespace=tenant.namespace,
            name="leader",
            identity="a",
            lead=LeadershipTerms(dependencies=env.dependencies, hub=hub, relay=relay),  # type: ignore[arg-type]
            report=lambda _: None,
            timing=SELDOM,
        )
        first, second = (
            Obeying(NodeName(f"node-{index}"), obeyed=obeyed, hub=hub, relay=relay)
            for index, obeyed in enumerate((8, 11))
        )
        async with running(asyncio.create_task(election.run())):
            await eventually.true(lambda: hub.epochs == [1])
            first.connects()
            await eventually.true(lambda: first.answered == [9])
            second.connects()
            await eventually.true(lambda: (first.answered, second.answered) == ([9, 12], [12]))
            first.connects()
            second.connects()
            Obeying(NodeName("node-2"), obeyed=20, hub=hub, relay=relay).connects()
            await eventually.true(lambda: hub.epochs == [1, 9, 12, 21])
        assert api.epochs == ["1", "9", "12", "21", "21"]  # the first renews the Lease, the last releases it


async def test_jobsets_run_only_after_previous_rounds_are_known() -> None:
    env = CoordinatorEnv(builders.gang(2))
    restarts, jobsets = Listing(), JobSetsToRun()
    outside = replace(env.dependencies, restarts=restarts, jobsets=jobsets)
    leading = LeadershipTerms(dependencies=outside, hub=Hub(env), relay=LeaderRelay())  # type: ignore[arg-type]
    async with running(asyncio.create_task(leading(Term(epoch=4, renewed_at=0.0)))), asyncio.timeout(60):
        await restarts.waited_for.wait()
        assert not jobsets.runs.is_set()
        restarts.listed.set()
        await jobsets.runs.wait()
