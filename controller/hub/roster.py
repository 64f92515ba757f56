"""Who is connected: one stream for each node, and the listener that is told of each coming and going."""

from collections.abc import Mapping
from types import MappingProxyType

from common import contained
from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.hub import streams
from controller.hub.metrics import HubMetrics
from controller.hub.ports import Listener
from controller.hub.streams import Ending, Stream
from controller.model.members import NodeName


class Roster:
    """Keeps the promises of ``ports.Listener`` about ``connected`` and ``gone``."""

    def __init__(self, listener: Listener, metrics: HubMetrics) -> None:
        self._listener = listener
        self._metrics = metrics
        self._streams: dict[NodeName, Stream] = {}

    @property
    def streams(self) -> Mapping[NodeName, Stream]:
        """The streams by node, as they are now."""
        return MappingProxyType(self._streams)

    def join(self, stream: Stream, welcome: pb.HubMessage) -> None:
        """Take a stream in, in the place of an older one of its node."""
        if (older := self._streams.get(stream.node)) is not None:
            self.end(older, streams.REPLACED)
        self._streams[stream.node] = stream
        self._metrics.sessions.set(len(self._streams))
        stream.send(welcome)
        self._listener.connected(stream)

    def leave(self, stream: Stream) -> None:
        """Take a stream out; once."""
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]
            self._metrics.sessions.set(len(self._streams))
            with contained.within(contained.Part.STREAM, stream.node):
                self._listener.gone(stream)

    def end(self, stream: Stream, ending: Ending) -> None:
        """Have a stream end, and take it out at once."""
        stream.end(ending)
        self.leave(stream)

    def end_all(self, ending: Ending) -> None:
        """End every stream."""
        for stream in [*self._streams.values()]:
            self.end(stream, ending)
