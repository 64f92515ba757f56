"""The hub's interfaces to the coordinator and to the API server, as narrow protocols.

The coordinator passes serialized messages: protobuf merges two, one after the other, into one message, so the common
part of what many agents receive is serialized once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.model.members import NodeChange, NodeName, NodeView, PodUid


class Session(Protocol):
    """One agent's stream, from its first Hello to its end.

    ``node`` comes from its token; ``number`` is never reused in this process.
    """

    @property
    def node(self) -> NodeName: ...
    @property
    def number(self) -> int: ...

    def send(self, message: pb.HubMessage | bytes) -> bool:
        """Queue a message; the hub adds the epoch to it. Never blocks.

        ``bytes`` are a serialized HubMessage (``encode``). False: the session is over, or ends now because the agent
        reads too slowly. The message is lost; the agent's next Hello reports its whole state.
        """
        ...


class Listener(Protocol):
    """Receive the streams' events: the coordinator. Plain calls in the event loop's thread; they must not block.

    A session begins with ``connected``, at once followed by ``hello``, and ends with ``disconnected``. If a node has
    two sessions, the older one's ``disconnected`` always comes before the newer one's ``connected``. All messages have
    passed ``controller.hub.messages`` and are about pods that are bound to the session's node.
    """

    def connected(self, session: Session) -> None: ...
    def hello(self, session: Session, hello: pb.Hello) -> None: ...
    def received(self, session: Session, message: pb.AgentMessage) -> None: ...
    def disconnected(self, session: Session) -> None: ...


class Pods(Protocol):
    """The node of each pod, as the API server has it (the controller's pod Informer)."""

    def node_of(self, uid: PodUid) -> NodeName | None:
        """Return the node; None if no such pod is known, or it is not bound yet."""
        ...


class Nodes(Protocol):
    """Nodes (``controller.watches.nodes.Nodes``)."""

    async def wait_synced(self) -> None: ...
    def view(self, name: NodeName) -> NodeView | None: ...
    def views(self) -> Iterable[NodeView]: ...
    def subscribe(self, listener: Callable[[NodeChange], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a token, as reviewed by the API server.

    ``user`` has the form ``system:serviceaccount:NAMESPACE:NAME``; ``node`` is empty if the token is bound to none.
    """

    user: str
    node: NodeName


class Reviewer(Protocol):
    """Has the API server review tokens (``controller.hub.identity.TokenReviewer``)."""

    async def review(self, token: str) -> Identity:
        """Return the identity of a token. Raises identity.RefusedError, or KubeError if the review failed."""
        ...


def encode(message: pb.HubMessage) -> bytes:
    """Return a message, or a part of one, as ``Session.send`` takes it: parts may be added together."""
    return message.SerializeToString()


def stamp(epoch: int) -> bytes:
    """Return the bytes that set the epoch of a serialized message when they are appended: the last value applies."""
    return pb.HubMessage(epoch=epoch).SerializeToString()
