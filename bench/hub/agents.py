"""Simulate agents: one member each, which stops and runs as soon as it is ordered to."""

import time
from dataclasses import dataclass, field
from typing import ClassVar

from bench.hub import broadcast, http2
from bench.hub.http2 import Connection, Stream
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
    """Simulate one agent, which reads at once.

    ``orders`` are its last Stop and Release, as received.
    """

    window: ClassVar = http2.WIDE_WINDOW
    """Bytes that the hub may send to it ungranted."""

    def __init__(self, place: Place, connection: Connection, *, times: Times) -> None:
        self.place = place
        self.connection = connection
        self.welcome = False
        self.orders: dict[str, bytes] = {}
        self._pod = pb.Pod(namespace=place.namespace, name=place.pod, uid=place.uid)
        self._faults = 0
        self._stream = connection.open(path=PATH, token=place.token, hear=lambda data: self._hear(data, times))
        self._bare: Stream | None = None
        self._say(self._stream, pb.AgentMessage(hello=self._hello()))

    @property
    def ended(self) -> bool:
        """Return whether the hub has ended its stream."""
        return self.connection.ended

    def join_broadcast(self, times: Times) -> None:
        """Open a second stream on the connection, for bare broadcasts; it is welcomed, too."""
        self.welcome = False
        self._bare = bare = self.connection.open(
            path=broadcast.PATH, token="", hear=lambda data: self._take(data, times, stream=bare)
        )

    def begin_broadcast(self) -> float:
        """Have the server send orders as long as the last ones; return when."""
        assert self._bare is not None
        at = time.monotonic()
        self._bare.send(broadcast.begin(self.orders["stop"], self.orders["release"]))
        return at

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
        self._say(self._stream, pb.AgentMessage(fault=fault))
        return at

    def tend(self) -> None:
        """Do periodic work: none."""

    def _hello(self) -> pb.Hello:
        return pb.Hello(protocol=1, node=self.place.node)

    def _hear(self, data: bytes, times: Times) -> None:
        """Process a message of the hub."""
        self._take(data, times, stream=self._stream)

    def _take(self, data: bytes, times: Times, *, stream: Stream) -> None:
        """Process a message, and answer on the stream that it came from."""
        message = pb.HubMessage.FromString(data)
        match kind := message.WhichOneof("body"):
            case "welcome":
                self.welcome = True
            case "stop":
                times.stops.append(time.monotonic())
                self._answer(stream, message.stop.round, pb.StepResult.STOPPED)
                self.orders[kind] = data
            case "release":
                times.releases.append(time.monotonic())
                self._answer(stream, message.release.round, pb.StepResult.RUNNING)
                self.orders[kind] = data
                times.answered = time.monotonic()
            case "sync":
                self._say(stream, pb.AgentMessage(hello=self._hello()))

    def _answer(self, stream: Stream, round_id: str, phase: pb.StepResult.Phase.ValueType) -> None:
        self._say(stream, pb.AgentMessage(result=pb.StepResult(round=round_id, pod=self._pod, phase=phase)))

    def _say(self, stream: Stream, message: pb.AgentMessage) -> None:
        stream.send(message.SerializeToString())


class DeafAgent(Agent):
    """Send Hello and grant the hub nothing: all its writes wait indefinitely."""

    window: ClassVar = 0

    def _hear(self, _data: bytes, _times: Times) -> None:
        """Raise AssertionError: nothing was granted."""
        raise AssertionError("the hub has sent more than it was granted")


class SlowAgent(Agent):
    """Grant the hub some bytes from time to time, and answer the messages that are complete."""

    window: ClassVar = 16

    def tend(self) -> None:
        """Read some more."""
        self._stream.grant(16)
