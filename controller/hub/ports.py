"""What the hub offers to the engine, and what it needs from the outside, as narrow protocols."""

from dataclasses import dataclass
from typing import Protocol

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.model.members import NodeName, PodUid


class Session(Protocol):
    """One agent's stream, from its first Hello to its end.

    ``node`` is what its token says, ``instance`` what its Hello says; ``number`` is never used twice by this process.
    """

    @property
    def node(self) -> NodeName: ...
    @property
    def instance(self) -> str: ...
    @property
    def number(self) -> int: ...

    def send(self, message: pb.HubMessage | bytes) -> bool:
        """Have a message sent, after those before it; the hub puts the epoch on it. Never blocks.

        ``bytes`` are a serialized HubMessage (``controller.hub.wire``). False: the session is over, or now ends because
        the agent is too slow a reader; the message is lost, and the agent's next Hello tells where everything stands.
        """
        ...


class Listener(Protocol):
    """Who is told what happens on the streams: the engine. Plain calls in the event loop's thread; they must not block.

    A session begins with ``connected``, at once followed by ``hello``, and ends with ``gone``. Of two sessions of one
    node the older has always gone before the newer connects. All that is told has passed ``controller.hub.messages``
    and is about pods that are bound to the session's node.
    """

    def connected(self, session: Session) -> None: ...
    def hello(self, session: Session, hello: pb.Hello) -> None: ...
    def told(self, session: Session, message: pb.AgentMessage) -> None: ...
    def gone(self, session: Session) -> None: ...


class Pods(Protocol):
    """Which node a pod is bound to, as the API server tells (the controller's pod watch)."""

    def node_of(self, uid: PodUid) -> NodeName | None:
        """Return the node; None while no such pod is known, or it is not bound yet."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token speaks for, by the API server's word.

    ``user`` is such as ``system:serviceaccount:NAMESPACE:NAME``; ``node`` is empty where the token is bound to none.
    """

    user: str
    node: NodeName


class Reviewer(Protocol):
    """Asks the API server about tokens (``controller.hub.identity.TokenReviewer``)."""

    async def review(self, token: str) -> Identity:
        """Return whose token this is. Raises identity.RefusedError, or KubeError when it could not be told."""
        ...
