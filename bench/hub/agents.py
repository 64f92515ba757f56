"""Simulate agents: one member each, which stops and runs as soon as it is ordered to."""

import ssl
import time
from dataclasses import dataclass, field

from bench.hub import http2
from bench.hub.http2 import Connection
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

PATH = "/kubemend.coordination.v1.Coordination/Connect"


@dataclass(frozen=True, slots=True)
class Place:
    """Describe one agent's node, member and token, for a process of simulators."""

    node: str
    token: str
    gang: str
    namespace: str
    pod: str
    uid: str


@dataclass(slots=True)
class Times:
    """Hold when (``time.monotonic``) the agents of one process have received and answered, in one round."""

    stops: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    answered: float = 0.0


class Agent:
    """Simulate one agent, which reads at once."""

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
        """Return whether the hub has ended its stream."""
        return self.connection.ended

    def hear(self) -> None:
        """Process received messages."""
        for data in self.connection.read():
            self._take(pb.HubMessage.FromString(data))

    def fail(self) -> float:
        """Report a fault of its member; return when."""
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
        """Do periodic work: none."""

    def _window(self) -> int:
        return http2.WIDE_WINDOW

    def _hello(self) -> pb.Hello:
        return pb.Hello(protocol=1, node=self.place.node)

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
    """Send Hello and grant the hub nothing: all its writes wait indefinitely."""

    def _window(self) -> int:
        return 0

    def hear(self) -> None:
        """Answer pings, so that the connection counts as alive."""
        for _ in self.connection.read():
            raise AssertionError("the hub has sent more than it was granted")


class SlowAgent(Agent):
    """Grant the hub some bytes from time to time, and answer the messages that are complete."""

    def _window(self) -> int:
        return 16

    def tend(self) -> None:
        """Read some more."""
        self.connection.grant(16)
