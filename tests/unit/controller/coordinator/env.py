"""An environment for one leader: its dependencies in memory, and agents that the test drives."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from kubemend.common.gangs import GangKey
from kubemend.common.kube.changes import ChangeKind
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.dependencies import Dependencies, Policy, steady_clock
from kubemend.controller.leader.election import Term
from kubemend.controller.metrics import Metrics
from kubemend.controller.model.members import Member, NodeChange, NodeName, NodeView, PodRef, PodUid
from kubemend.controller.model.rounds import Recreate, RoundRef
from kubemend.controller.restarts.events import ObjectRef
from kubemend.controller.restarts.objects import NewRound, Restart, RestartSpec
from kubemend.controller.restarts.store import Begun, RestartChange
from kubemend.controller.watches.members import MemberChange, MemberChangeKind
from tests.unit.controller import builders

WAIT = 60.0


class Synced:
    """A dependency that is synced from the start."""

    async def wait_synced(self) -> None:
        return


class MembersHere(Synced):
    """The gang's pods."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.all = {member.pod.uid: member for member in members}
        self.single: dict[str, Member | GangKey] = {}
        self.followed: list[GangKey] = []
        self.ever_followed: list[GangKey] = []
        self.may_follow = asyncio.Event()
        self.may_follow.set()
        self.listeners: list[Callable[[MemberChange], None]] = []

    def by_uid(self, uid: PodUid) -> Member | None:
        return self.all.get(uid)

    def of_gang(self, key: GangKey) -> Mapping[PodUid, Member]:
        return {uid: member for uid, member in self.all.items() if member.gang == key}

    def on_node(self, node: NodeName) -> Mapping[PodUid, Member]:
        return {uid: member for uid, member in self.all.items() if member.node == node}

    def gangs(self) -> Collection[GangKey]:
        return {member.gang for member in self.all.values()}

    @asynccontextmanager
    async def following(self, pod: GangKey) -> AsyncIterator[Callable[[], GangKey | None]]:
        assert pod not in self.followed
        self.followed.append(pod)
        self.ever_followed.append(pod)
        try:
            await self.may_follow.wait()
            found = self.single.get(pod.name)
            if isinstance(found, Member):
                self.all[found.pod.uid] = found
            yield lambda: found if isinstance(found, GangKey) else None
        finally:
            self.followed.remove(pod)
            for uid in list(self.of_gang(pod)):
                self.gone(uid, kind=MemberChangeKind.LEFT)

    def subscribe(self, listener: Callable[[MemberChange], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def gone(self, uid: PodUid, *, kind: MemberChangeKind = MemberChangeKind.GONE) -> None:
        member = self.all.pop(uid)
        for listener in self.listeners:
            listener(MemberChange(kind, member))

    def appears(self, member: Member) -> None:
        self.all[member.pod.uid] = member
        for listener in self.listeners:
            listener(MemberChange(MemberChangeKind.APPEARED, member))


class NodesHere(Synced):
    """The nodes, all ready."""

    def __init__(self, nodes: Mapping[NodeName, NodeView]) -> None:
        self.all = dict(nodes)

    def view(self, name: NodeName) -> NodeView | None:
        return self.all.get(name)

    def views(self) -> Collection[NodeView]:
        return self.all.values()

    def subscribe(self, listener: Callable[[NodeChange], None]) -> Callable[[], None]:
        return lambda: None


class RestartsHere(Synced):
    """Restart objects. ``may_create`` is cleared if the API server does not answer.

    ``on_takeover`` is called while one is taken over from a previous leader.
    """

    def __init__(self) -> None:
        self.all: dict[str, Restart] = {}
        self.statuses: dict[str, dict[str, Any]] = {}
        self.noted: dict[GangKey, int] = {}
        self.listeners: list[Callable[[RestartChange], None]] = []
        self.may_create = asyncio.Event()
        self.may_create.set()
        self.creating = asyncio.Event()
        self.on_takeover: Callable[[Restart], None] = lambda _: None

    async def run(self) -> None:
        await asyncio.Event().wait()

    def restarts(self) -> Mapping[str, Restart]:
        return self.all

    def of_gang(self, gang: GangKey) -> Mapping[str, Restart]:
        return {each.id: each for each in self.all.values() if each.gang == gang}

    def requests(self) -> list[Restart]:
        return [restart for restart in self.all.values() if restart.is_request]

    def unfinished(self) -> list[Restart]:
        return [restart for restart in self.all.values() if restart.is_round and not restart.is_finished]

    def note_attempt(self, gang: GangKey, attempt: int) -> None:
        self.noted[gang] = max(self.noted.get(gang, 0), attempt)

    def newest_attempt(self, gang: GangKey) -> int:
        known = (restart.attempt for restart in self.all.values() if restart.gang == gang)
        return max((self.noted.get(gang, 0), *known))

    def subscribe(self, listener: Callable[[RestartChange], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def create(self, new: NewRound, *, timeout: float = 2.0) -> Begun:
        self.creating.set()
        await self.may_create.wait()
        name = f"{new.gang.name}-{new.attempt}"
        restart = Restart(
            namespace=new.gang.namespace,
            name=name,
            uid=f"uid-{name}",
            version="1",
            generation=1,
            created_at=time.time(),
            spec=RestartSpec(gang=new.gang),
            gang=new.gang,
            attempt=new.attempt,
            epoch=new.epoch,
            status=new.status,
            gang_uid=new.gang_uid,
        )
        self.all[restart.id] = restart
        return Begun(RoundRef(new.gang.namespace, name, new.gang, new.attempt), durable=True)

    async def adopt(self, request: Restart, new: NewRound, *, timeout: float = 2.0) -> Begun:
        await self.may_create.wait()
        self.all[request.id] = replace(request, gang=new.gang, attempt=new.attempt, epoch=new.epoch, status=new.status)
        return Begun(RoundRef(request.namespace, request.name, new.gang, new.attempt), durable=True)

    async def resume(self, restart: Restart, *, epoch: int, timeout: float = 2.0) -> bool:
        self.on_takeover(restart)
        if restart.id not in self.all:
            return False
        self.all[restart.id] = replace(self.all[restart.id], epoch=epoch)
        return True

    def set_status(self, of: RoundRef | Restart, status: Mapping[str, Any]) -> None:
        self.statuses[of.id] = dict(status)
        if of.id in self.all:
            self.all[of.id] = replace(self.all[of.id], status=dict(status))

    def asked(self, restart: Restart) -> None:
        self.all[restart.id] = restart
        self._tell(ChangeKind.APPEARED, restart)

    def changed(self, restart: Restart) -> None:
        self.all[restart.id] = restart
        self._tell(ChangeKind.CHANGED, restart)

    def deleted(self, restart_id: str) -> None:
        self._tell(ChangeKind.GONE, self.all.pop(restart_id))

    def _tell(self, kind: ChangeKind, restart: Restart) -> None:
        for listener in self.listeners:
            listener(RestartChange(kind, restart))


@dataclass
class Replaced:
    """Pods to replace, and pods that their Jobs must count again."""

    wanted: list[Recreate] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    forgotten: list[PodUid] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def recreate(self, wanted: Recreate) -> None:
        self.wanted.append(wanted)

    def forget(self, uid: PodUid) -> None:
        self.forgotten.append(uid)

    def restore(self, pod: PodRef) -> None:
        self.restored.append(pod.name)

    async def job_of(self, member: Member) -> dict[str, Any] | None:
        assert member.owner is not None
        self.read.append(member.owner.name)
        return self.jobs.get(member.owner.name)


@dataclass
class RecordedEvents:
    """Recorded Events."""

    reasons: list[str] = field(default_factory=list)

    def record(
        self,
        about: ObjectRef,
        *,
        reason: str,
        message: str,
        warning: bool = False,
        subject: str = "",
        may_repeat: bool = False,
    ) -> None:
        self.reasons.append(reason)


class Agent:
    """One node's agent: ``received`` returns the messages that the hub has sent to it."""

    def __init__(self, node: NodeName) -> None:
        self.node = node
        self.number = 1
        self.inbox: asyncio.Queue[pb.HubMessage] = asyncio.Queue()

    def send(self, message: pb.HubMessage | bytes) -> bool:
        parsed = pb.HubMessage.FromString(message) if isinstance(message, bytes) else message
        self.inbox.put_nowait(parsed)
        return True

    async def received(self, body: str) -> pb.HubMessage:
        """Return the next message of that kind, skipping others."""
        async with asyncio.timeout(WAIT):
            while True:
                message = await self.inbox.get()
                if message.WhichOneof("body") == body:
                    return message

    def waiting(self) -> list[str | None]:
        """Return the kinds of the unread messages."""
        return [message.WhichOneof("body") for message in list(self.inbox._queue)]  # type: ignore[attr-defined]


class CoordinatorEnv:
    """A leader and its environment."""

    def __init__(self, members: Sequence[Member], *, policy: Policy | None = None) -> None:
        self.members = MembersHere(members)
        self.nodes = NodesHere({member.node: NodeView(member.node, ready=True) for member in members})
        self.restarts = RestartsHere()
        self.replaced = Replaced()
        self.events = RecordedEvents()
        self.agents = {member.node: Agent(member.node) for member in members}
        self.connected = set(self.agents)
        self.now = steady_clock()
        self.registry = CollectorRegistry()
        self.dependencies = Dependencies(
            members=self.members,
            nodes=self.nodes,
            restarts=self.restarts,
            pod_replacer=self.replaced,
            events=self.events,
            sessions=lambda node: self.agents[node] if node in self.connected else None,
            metrics=Metrics(self.registry),
            now=self.now,
            policy=policy or Policy(),
        )

    @asynccontextmanager
    async def leading(self, *, epoch: int = 1) -> AsyncIterator[GangCoordinator]:
        """Lead for the length of the block."""
        loop = asyncio.get_running_loop()
        coordinator = GangCoordinator(dependencies=self.dependencies, term=Term(epoch=epoch, renewed_at=loop.time()))
        running = asyncio.create_task(coordinator.run(), name="coordinator")
        ready = asyncio.create_task(coordinator.ready.wait(), name="ready")
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        try:
            if running.done():
                await running
            yield coordinator
        finally:
            ready.cancel()
            running.cancel()
            await asyncio.gather(running, ready, return_exceptions=True)

    def agent(self, index: int) -> Agent:
        return self.agents[NodeName(f"node-{index}")]

    def fails(
        self,
        coordinator: GangCoordinator,
        index: int,
        *,
        fault_id: str = "f",
        age: float = 0.0,
        generation: int = 0,
        **more: Any,
    ) -> None:
        """Have a member's agent report its exit."""
        member = builders.member(index, generation=generation)
        fault = pb.Fault(
            id=fault_id,
            pod=pod(member),
            gang=str(member.gang),
            container=more.pop("container", "trainer"),
            kind=pb.Fault.EXIT,
            code="Exit1",
            message="exited with 1",
            exit_code=more.pop("exit_code", 1),
            age_seconds=age,
            **more,
        )
        coordinator.received(self.agents[member.node], pb.AgentMessage(fault=fault))

    def stands(
        self,
        coordinator: GangCoordinator,
        index: int,
        round_id: str,
        phase: "pb.StepResult.Phase.ValueType",
        *,
        generation: int = 0,
    ) -> None:
        """Have a member's agent report its phase."""
        member = builders.member(index, generation=generation)
        result = pb.StepResult(round=round_id, pod=pod(member), phase=phase, seconds={"stop": 0.01})
        coordinator.received(self.agents[member.node], pb.AgentMessage(result=result))


def pod(member: Member) -> pb.Pod:
    """Return a member's pod in the agents' form."""
    return pb.Pod(namespace=member.pod.namespace, name=member.pod.name, uid=member.pod.uid)
