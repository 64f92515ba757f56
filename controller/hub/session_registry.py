"""The connected agents: one stream for each node. The listener is notified when one connects or disconnects."""

from collections.abc import Mapping
from types import MappingProxyType

from kubemend.common import contained
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import streams
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.ports import Listener
from kubemend.controller.hub.streams import Ending, Stream
from kubemend.controller.model.members import NodeName


class SessionRegistry:
    """Keep the registry and the guarantees of ``ports.Listener`` about ``connected`` and ``gone``."""

    def __init__(self, listener: Listener, metrics: HubMetrics) -> None:
        self._listener = listener
        self._metrics = metrics
        self._streams: dict[NodeName, Stream] = {}

    @property
    def streams(self) -> Mapping[NodeName, Stream]:
        """Return the current streams by node."""
        return MappingProxyType(self._streams)

    def join(self, stream: Stream, welcome: pb.HubMessage) -> None:
        """Add a stream, in place of an older one of its node."""
        if (older := self._streams.get(stream.node)) is not None:
            self.end(older, streams.REPLACED)
        self._streams[stream.node] = stream
        self._metrics.sessions.set(len(self._streams))
        stream.send(welcome)
        self._listener.connected(stream)

    def leave(self, stream: Stream) -> None:
        """Remove a stream; once."""
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]
            self._metrics.sessions.set(len(self._streams))
            with contained.within(contained.Part.STREAM, stream.node):
                self._listener.disconnected(stream)

    def end(self, stream: Stream, ending: Ending) -> None:
        """End a stream, and remove it at once."""
        stream.end(ending)
        self.leave(stream)

    def end_all(self, ending: Ending) -> None:
        """End every stream."""
        for stream in [*self._streams.values()]:
            self.end(stream, ending)
