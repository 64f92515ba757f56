"""Run a hub client on stand-ins for the rest of the agent, and replicas of the hub to connect to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.hub.client import Dependencies, Hub, Identity
from kubemend.agent.hub.connection import Limits
from kubemend.agent.hub.endpoint import HubEndpoint
from kubemend.agent.hub.member_devices import Verdicts
from kubemend.agent.hub.metrics import HubMetrics
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.model.rounds import Order, StepResult
from kubemend.agent.model.workloads import ContainerId, ContainerSummary, PodRef, PodUid
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from tests.environments.node import NodeEnv
from tests.fakes.certificates import Authority
from tests.fakes.hub import NAME, SECONDS, FakeHub, FakeStream
from tests.unit.hub import builders


@dataclass
class Runtime:
    """The container runtime: containers' exits, and which of them the agent requested. ``failures`` come first."""

    infos: dict[ContainerId, ContainerStatus] = field(default_factory=dict)
    ended: set[ContainerId] = field(default_factory=set)
    failures: list[errors.CriError] = field(default_factory=list)

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        if self.failures:
            raise self.failures.pop()
        if container_id not in self.infos:
            raise errors.NotFound("no such container", where="/run/cri.sock")
        return self.infos[container_id]

    def has_ended(self, container_id: ContainerId) -> bool:
        return container_id in self.ended


@dataclass
class Rounds:
    """Records orders, releases and aborts; the test reports the results. An order runs until the test releases it."""

    orders: "asyncio.Queue[tuple[Order, PodRef]]" = field(default_factory=asyncio.Queue)
    words: "asyncio.Queue[tuple[str, str, frozenset[PodUid], str]]" = field(default_factory=asyncio.Queue)
    stand: tuple[StepResult, ...] = ()
    pods_busy: set[PodUid] = field(default_factory=set)
    expected: set[ContainerId] = field(default_factory=set)
    report: Callable[[StepResult], None] = lambda _: None
    guards: list[ContainerSummary] = field(default_factory=list)
    guards_taken: asyncio.Event = field(default_factory=asyncio.Event)
    guards_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle_order(self, order: Order, *, pod: PodRef) -> None:
        self.orders.put_nowait((order, pod))

    def release(self, round_name: str, pods: Collection[PodUid]) -> None:
        self.words.put_nowait(("release", round_name, frozenset(pods), ""))

    def abort(self, round_name: str, pods: Collection[PodUid], *, reason: str) -> None:
        self.words.put_nowait(("abort", round_name, frozenset(pods), reason))

    def step_results(self) -> tuple[StepResult, ...]:
        return self.stand

    def expects_end(self, container: ContainerId) -> bool:
        return container in self.expected

    def busy(self, pod: PodUid) -> bool:
        return pod in self.pods_busy

    @contextlib.asynccontextmanager
    async def guarding(self, failed: ContainerSummary) -> AsyncIterator[asyncio.Event]:
        self.guards.append(failed)
        try:
            yield self.guards_taken
        finally:
            self.guards_over.set()

    async def ordered(self) -> tuple[Order, PodRef]:
        """Return the next order, and its pod."""
        async with asyncio.timeout(SECONDS):
            return await self.orders.get()

    async def word(self) -> tuple[str, str, frozenset[PodUid], str]:
        """Return the next release or abort."""
        async with asyncio.timeout(SECONDS):
            return await self.words.get()


@dataclass
class HandledExits:
    """The handled exits, kept across agents."""

    ids: frozenset[ContainerId] = frozenset()
    saved: "asyncio.Queue[frozenset[ContainerId]]" = field(default_factory=asyncio.Queue)

    async def load(self) -> frozenset[ContainerId]:
        return self.ids

    async def save(self, ids: frozenset[ContainerId]) -> None:
        self.ids = ids
        self.saved.put_nowait(ids)

    async def next(self) -> frozenset[ContainerId]:
        """Return the state that is saved next."""
        async with asyncio.timeout(SECONDS):
            return await self.saved.get()


@dataclass
class Loads:
    """The driver's readings."""

    now: dict[DeviceId, Load] = field(default_factory=dict)

    def loads(self) -> Mapping[DeviceId, Load]:
        return self.now


@dataclass
class Reports:
    """The reports of the client, newest last."""

    all: list[ComponentStatus] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, status: ComponentStatus) -> None:
        self.all.append(status)
        self._more.set()

    async def until(self, state: ComponentState, *, saying: str = "") -> ComponentStatus:
        """Return the newest report once it has that state and contains that text."""
        async with asyncio.timeout(SECONDS):
            while not (self.all and self.all[-1].state is state and saying in self.all[-1].message):
                self._more.clear()
                await self._more.wait()
        return self.all[-1]


@dataclass(kw_only=True)
class HubEnv(NodeEnv):
    """The hub client and its environment."""

    directory: Path
    authority: Authority = field(default_factory=lambda: Authority.named("kubemend-hub"))
    runtime: Runtime = field(default_factory=Runtime)
    rounds: Rounds = field(default_factory=Rounds)
    handled: HandledExits = field(default_factory=HandledExits)
    loads: Loads = field(default_factory=Loads)
    reports: Reports = field(default_factory=Reports)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ca, self.token = self.directory / "ca.crt", self.directory / "token"
        self.ca.write_bytes(self.authority.pem)
        self.token.write_text("token-1\n")

    def replica(self, **about: Any) -> FakeHub:
        """Make a replica that the agent trusts."""
        return FakeHub(self.authority, **about)

    def agent(self, *replicas: FakeHub, answer_timeout: float = SECONDS, dry_run: bool = False, **limits: float) -> Hub:
        """Make a hub client that knows these replicas. Its metrics start at 0."""
        self.registry = CollectorRegistry()
        waits = {"welcome": SECONDS, "first_wait": 0.01, "longest_wait": 0.05}
        return Hub(
            HubEndpoint(addresses=tuple(hub.address for hub in replicas), name=NAME, ca=self.ca, token=self.token),
            identity=Identity(node="node-1", dry_run=dry_run),
            dependencies=Dependencies(
                pods=self.pods,
                epochs=self.store,
                exits=self.handled,
                holders=self.holders,
                loads=self.loads,
                verdicts=Verdicts(verdict_store=self.verdict_store, devices=self.devices, holders=self.holders),
            ),
            report=self.reports,
            metrics=HubMetrics(self.registry),
            answer_timeout=answer_timeout,
            limits=Limits(**waits | limits),
        )

    @contextlib.asynccontextmanager
    async def running(self, agent: Hub) -> AsyncIterator[Hub]:
        """Run the client; if it ends before the test does, fail the test at once."""
        self.rounds.report = agent.report_result
        work = agent.run(rounds=self.rounds, containers=self.events, runtime=self.runtime)
        async with asyncio.TaskGroup() as tasks:
            running = aio.spawn_eternal(tasks, work, name="hub")
            yield agent
            running.cancel()

    async def caught_up(self, stream: FakeStream) -> None:
        """Wait until the agent has sent a member's state, which is sent after all faults to report."""
        self.rounds.report(builders.step_result(9))
        while (await stream.next("result")).pod != builders.pod_of(9):
            pass

    def count(self, name: str, **labels: str) -> float:
        """Return a metric's value."""
        return self.metric(name, **labels) or 0.0
