"""Simulated agents: one member each, which stops and runs the moment it is told to."""

import ssl
import time
from dataclasses import dataclass, field

from bench.hub import http2
from bench.hub.http2 import Connection
from common.pb.coordination.v1 import coordination_pb2 as pb

PATH = "/kubemend.coordination.v1.Coordination/Connect"


@dataclass(frozen=True, slots=True)
class Place:
    """One agent's node, member and token, as they are told to a process of simulators."""

    node: str
    token: str
    gang: str
    namespace: str
    pod: str
    uid: str


@dataclass(slots=True)
class Times:
    """When (``time.monotonic``) the agents of one process have heard and answered, in one round."""

    stops: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    answered: float = 0.0


class Agent:
    """One agent, which reads at once what it is sent."""

    def __init__(self, place: Place, *, address: tuple[str, int], tls: ssl.SSLContext, times: Times) -> None:
        self.place = place
        self.welcome = False
        self._times = times
        self._pod = pb.Pod(namespace=place.namespace, name=place.pod, uid=place.uid)
        self._faults = 0
        self.connection = Connection(address, tls=tls, path=PATH, token=place.token, window=self._window())
        self._say(pb.AgentMessage(hello=self._hello()))

    @property
    def ended(self) -> bool:
        """Whether the hub has ended its stream."""
        return self.connection.ended

    def hear(self) -> None:
        """Take what has come."""
        for data in self.connection.read():
            self._take(pb.HubMessage.FromString(data))

    def fail(self) -> float:
        """Tell of a fault of its member; return when."""
        self._faults += 1
        place = self.place
        fault = pb.Fault(
            id=f"{place.uid}-{self._faults}",
            pod=self._pod,
            gang=place.gang,
            container="trainer",
            kind=pb.Fault.EXIT,
            code="Exited",
            message="the process has exited with 1",
            exit_code=1,
        )
        at = time.monotonic()
        self._say(pb.AgentMessage(fault=fault))
        return at

    def tend(self) -> None:
        """Do what is to be done now and then: nothing."""

    def _window(self) -> int:
        return http2.WIDE_WINDOW

    def _hello(self) -> pb.Hello:
        running = pb.Container(name="trainer", id="0123456789abcdef", state=pb.Container.RUNNING)
        member = pb.Member(pod=self._pod, gang=self.place.gang, containers=[running])
        return pb.Hello(protocol=1, node=self.place.node, instance=f"{time.monotonic_ns()}", members=[member])

    def _take(self, message: pb.HubMessage) -> None:
        match message.WhichOneof("body"):
            case "welcome":
                self.welcome = True
            case "stop":
                self._times.stops.append(time.monotonic())
                self._answer(message.stop.round, pb.StepResult.STOPPED)
            case "release":
                self._times.releases.append(time.monotonic())
                self._answer(message.release.round, pb.StepResult.RUNNING)
                self._times.answered = time.monotonic()
            case "sync":
                self._say(pb.AgentMessage(hello=self._hello()))

    def _answer(self, round_id: str, phase: pb.StepResult.Phase.ValueType) -> None:
        self._say(pb.AgentMessage(result=pb.StepResult(round=round_id, pod=self._pod, phase=phase)))

    def _say(self, message: pb.AgentMessage) -> None:
        self.connection.send(message.SerializeToString())


class DeafAgent(Agent):
    """Says Hello and grants the hub nothing: whatever is written to it waits for ever."""

    def _window(self) -> int:
        return 0

    def hear(self) -> None:
        """Answer pings, so that it is not taken for dead."""
        for _ in self.connection.read():
            raise AssertionError("the hub has sent what was not granted")


class SlowAgent(Agent):
    """Grants the hub some bytes now and then, and answers what it can make out of them."""

    def _window(self) -> int:
        return 16

    def tend(self) -> None:
        """Read some more."""
        self.connection.grant(16)
