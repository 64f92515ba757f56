"""After any breaks, a reader of the last stream knows the current state and every open fault."""

import asyncio
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.hub.open_faults import Fault, OpenFaults
from kubemend.agent.hub.outbox import HelloInfo, Outbox
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import PodUid
from kubemend.common.coordination import FaultAnswer, FaultKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.unit.hub import builders

PODS = 3
PHASES = (StepPhase.STOPPING, StepPhase.STOPPED, StepPhase.RUNNING)


@dataclass
class Listener:
    """A hub: its knowledge from the messages of all streams."""

    phases: dict[str, int] = field(default_factory=dict)
    faults: set[str] = field(default_factory=set)

    def hear(self, message: pb.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "hello":
                self.phases |= {each.pod.uid: each.phase for each in message.hello.results}
            case "result":
                self.phases[message.result.pod.uid] = message.result.phase
            case "fault":
                self.faults.add(message.fault.id)


class Env:
    """The node, its outbox, and a hub at the other end of a stream that may lose messages in transit."""

    def __init__(self) -> None:
        self.step_results: dict[PodUid, StepResult] = {}
        self.hub = Listener()
        self.faults = OpenFaults(now=lambda: 100.0)
        about = HelloInfo("n", epoch=lambda: 0, step_results=lambda: tuple(self.step_results.values()))
        self.outbox = Outbox(introduction=about, faults=self.faults)
        self.unanswered: set[str] = set()
        self._serial = 0

    def step(self, number: int) -> None:
        """Advance a member by one phase in its round."""
        uid = builders.ref(number).uid
        before = self.step_results.get(uid)
        at = PHASES.index(before.phase) + 1 if before is not None else 0
        if at < len(PHASES):
            step_result = replace(builders.step_result(number), phase=PHASES[at])
            self.step_results[uid] = step_result
            self.outbox.result(step_result)

    def phases(self) -> dict[str, int]:
        """Return the members' phases, as numbers of the wire."""
        return {uid: PHASES.index(step_result.phase) + 1 for uid, step_result in self.step_results.items()}

    def fail(self, number: int) -> None:
        """Make a member fail."""
        self._serial += 1
        fault_id = f"f{self._serial}"
        self.faults.add(
            Fault(fault_id, builders.trainer(number), builders.GANG, FaultKind.EXIT, "Exit1", "it ended", 100.0)
        )
        self.unanswered.add(fault_id)

    def answer(self) -> None:
        """Have the hub answer one fault that it received."""
        for fault_id in sorted(self.hub.faults & self.unanswered)[:1]:
            self.faults.answered(fault_id, FaultAnswer.NOTHING)
            self.unanswered.discard(fault_id)
            self.hub.faults.discard(fault_id)

    def say(self, *, arrives: bool) -> bool:
        """Send one message; return whether there was one."""
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
    st.tuples(st.sampled_from(["step", "fail"]), pods),
    st.tuples(st.sampled_from(["say", "say", "lose", "open", "sync", "answer"]), st.none()),
)


async def play(env: Env, schedule: list[tuple[str, int | None]]) -> None:
    for name, number in schedule:
        if number is not None:
            getattr(env, name)(number)
        elif name == "say":
            env.say(arrives=True)
        elif name == "open":
            env.outbox.close()
            env.outbox.open()
        elif name == "sync":
            env.outbox.send_hello()
        else:
            getattr(env, name)()


@given(schedule=st.lists(steps, max_size=60), sudden=st.booleans())
def test_last_stream_delivers_current_state(schedule: list[tuple[str, int | None]], sudden: bool) -> None:
    async def scenario() -> None:
        env = Env()
        await play(env, [("open", None), *schedule])
        if sudden:
            env.lose()
        env.hear_out()
        assert env.hub.faults == env.unanswered
        assert env.hub.phases == env.phases()

    asyncio.run(scenario())


@given(schedule=st.lists(steps, max_size=60))
def test_unbroken_stream_needs_no_second_hello(schedule: list[tuple[str, int | None]]) -> None:
    async def scenario() -> None:
        env = Env()
        kept = [step for step in schedule if step[0] not in ("lose", "open", "sync")]
        await play(env, [("open", None), ("say", None), *kept])
        while env.say(arrives=True):
            pass
        assert env.hub.phases == env.phases()
        assert env.unanswered <= env.hub.faults

    asyncio.run(scenario())
