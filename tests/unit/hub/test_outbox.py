"""After any breaks, a reader of the last stream knows the current state and every open fault."""

import asyncio
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.hub import member_states
from kubemend.agent.hub.member_states import Change, Member, MemberContainer
from kubemend.agent.hub.open_faults import Fault, OpenFaults
from kubemend.agent.hub.outbox import HelloInfo, Outbox
from kubemend.agent.model.rounds import FaultKind, Phase, Standing, Taken
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.unit.hub import builders

PODS = 3
PHASES = (Phase.STOPPING, Phase.STOPPED, Phase.RUNNING)


@dataclass
class Node:
    """The state of the node (``outbox.Members``)."""

    members: dict[PodUid, Member] = field(default_factory=dict)
    standings: dict[PodUid, Standing] = field(default_factory=dict)

    def all(self) -> tuple[Member, ...]:
        return tuple(self.members.values())

    def member(self, uid: PodUid) -> Member | None:
        return self.members.get(uid)

    def change(self, uid: PodUid, *, told: Member | None) -> Change | None:
        return member_states.change(told, self.members.get(uid))


@dataclass
class Listener:
    """A hub: its knowledge from the messages of all streams. A Hello replaces all members."""

    attempts: dict[str, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)

    def hear(self, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "hello":
                self.attempts = {each.pod.uid: each.containers[0].attempt for each in message.hello.members}
                self.phases |= {each.pod.uid: each.phase for each in message.hello.results}
            case "change" if message.change.HasField("gone"):
                del self.attempts[message.change.gone.uid]
            case "change":
                self.attempts[message.change.member.pod.uid] = message.change.member.containers[0].attempt
            case "result":
                self.phases[message.result.pod.uid] = message.result.phase
            case "fault":
                self.faults.add(message.fault.id)


class World:
    """The node, its outbox, and a hub at the other end of a stream that may lose messages in transit."""

    def __init__(self) -> None:
        self.node, self.hub = Node(), Listener()
        self.faults = OpenFaults(now=lambda: 100.0)
        about = HelloInfo(
            "n", "i", "1", can_hold=True, epoch=lambda: 0, standings=lambda: tuple(self.node.standings.values())
        )
        self.outbox = Outbox(introduction=about, members=self.node, faults=self.faults)
        self.faults.on_new(self.outbox.wake)
        self.unanswered: set[str] = set()
        self._serial = 0

    def look_different(self, number: int) -> None:
        """Add a member, or replace its container."""
        self._serial += 1
        uid = builders.ref(number).uid
        container = MemberContainer("trainer", ContainerId("c"), self._serial, ContainerState.RUNNING)
        self.node.members[uid] = Member(builders.ref(number), builders.GANG, (container,))
        self.outbox.changed(uid)

    def go(self, number: int) -> None:
        """Remove a member."""
        uid = builders.ref(number).uid
        self.node.members.pop(uid, None)
        self.outbox.changed(uid)

    def step(self, number: int) -> None:
        """Advance a member by one phase in its round."""
        uid = builders.ref(number).uid
        before = self.node.standings.get(uid)
        at = PHASES.index(before.phase) + 1 if before is not None else 0
        if at < len(PHASES):
            standing = replace(builders.standing(number), phase=PHASES[at])
            self.node.standings[uid] = standing
            self.outbox.result(standing)

    def fail(self, number: int) -> None:
        """Make a member fail."""
        self._serial += 1
        fault_id = f"f{self._serial}"
        self.faults.tell(
            Fault(fault_id, builders.trainer(number), builders.GANG, FaultKind.EXIT, "Exit1", "it ended", 100.0)
        )
        self.unanswered.add(fault_id)

    def answer(self) -> None:
        """Have the hub answer one fault that it received."""
        for fault_id in sorted(self.hub.faults & self.unanswered)[:1]:
            self.faults.answered(fault_id, Taken.NOTHING)
            self.unanswered.discard(fault_id)
            self.hub.faults.discard(fault_id)

    def say(self, *, arrives: bool) -> bool:
        """Send one message; return whether there was one."""
        self.outbox.settle()
        message = self.outbox._pick()
        if message is not None and arrives:
            self.hub.hear(message)
        return message is not None

    def lose(self) -> None:
        """Break the stream with one message in transit, and open another."""
        self.say(arrives=False)
        self.outbox.close()

    def hear_out(self) -> None:
        """Run a stream until all is sent."""
        self.hub.faults.clear()
        self.outbox.close()
        self.outbox.open()
        while self.say(arrives=True):
            pass


pods = st.integers(0, PODS - 1)
steps = st.one_of(
    st.tuples(st.sampled_from(["look_different", "go", "step", "fail"]), pods),
    st.tuples(st.sampled_from(["say", "say", "lose", "open", "sync", "answer"]), st.none()),
)


async def play(world: World, schedule: list[tuple[str, int | None]]) -> None:
    for name, number in schedule:
        if number is not None:
            getattr(world, name)(number)
        elif name == "say":
            world.say(arrives=True)
        elif name == "open":
            world.outbox.close()
            world.outbox.open()
        elif name == "sync":
            world.outbox.say_hello()
        else:
            getattr(world, name)()


@given(schedule=st.lists(steps, max_size=60), sudden=st.booleans())
def test_last_stream_delivers_current_state(schedule: list[tuple[str, int | None]], sudden: bool) -> None:
    async def scenario() -> None:
        world = World()
        await play(world, [("open", None), *schedule])
        if sudden:
            world.lose()
        world.hear_out()
        so = {uid: member.containers[0].attempt for uid, member in world.node.members.items()}
        assert world.hub.attempts == so
        assert world.hub.faults == world.unanswered
        assert {uid: phase - 1 for uid, phase in world.hub.phases.items()} == {
            uid: PHASES.index(standing.phase) for uid, standing in world.node.standings.items()
        }

    asyncio.run(scenario())


@given(schedule=st.lists(steps, max_size=60))
def test_unbroken_stream_needs_no_second_hello(schedule: list[tuple[str, int | None]]) -> None:
    async def scenario() -> None:
        world = World()
        kept = [step for step in schedule if step[0] not in ("lose", "open", "sync")]
        await play(world, [("open", None), ("say", None), *kept])
        while world.say(arrives=True):
            pass
        so = {uid: member.containers[0].attempt for uid, member in world.node.members.items()}
        assert world.hub.attempts == so
        assert world.unanswered <= world.hub.faults

    asyncio.run(scenario())
