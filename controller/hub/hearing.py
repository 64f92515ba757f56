"""From an agent's bytes to words that the listener can believe: about pods of the agent's own node alone."""

import structlog

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.hub import claims, messages
from controller.hub.claims import Claim
from controller.hub.messages import Limits
from controller.hub.metrics import HubMetrics
from controller.hub.ports import Listener, Pods
from controller.hub.refusals import Reason, RefusedError
from controller.hub.streams import Stream

log = structlog.get_logger(__name__)


class Hearing:
    """Hears all streams, and tells the listener. What a stream may not say is counted and passed over, or ends it."""

    def __init__(self, *, listener: Listener, pods: Pods, metrics: HubMetrics, limits: Limits) -> None:
        self._listener = listener
        self._pods = pods
        self._metrics = metrics
        self._limits = limits

    def pod_bound(self, stream: Stream, uid: str) -> None:
        """Tell what this stream has said of a pod before the pod was known."""
        for message in stream.unknown_pods.take(uid):
            self._tell(stream, message)

    def words(self, stream: Stream, data: bytes) -> None:
        """Take one message. Raises RefusedError when it ends the stream."""
        try:
            message = messages.parse(data, limits=self._limits)
            if message.WhichOneof("body") == "hello":
                self.hello(stream, messages.hello_of(message, node=stream.node))
            elif message.WhichOneof("body") == "samples":
                self._tell_samples(stream, message.samples)
            else:
                self._tell(stream, message)
        except RefusedError as error:
            if error.ends_stream:
                raise
            self._pass_over(stream, error.reason, times=1)

    def hello(self, stream: Stream, hello: pb.Hello) -> None:
        """Tell of a Hello; it replaces all that was said before."""
        stream.told_faults.clear()
        stream.unknown_pods.clear()
        parts = claims.sort_hello(hello, node=stream.node, node_of=self._pods.node_of)
        self._pass_over(stream, Reason.FOREIGN_POD, times=parts.foreign)
        self._listener.hello(stream, parts.hello)
        for message in parts.unknown:
            self._keep(stream, message)

    def _tell_samples(self, stream: Stream, samples: pb.Samples) -> None:
        ours, foreign = claims.sort_samples(samples, node=stream.node, node_of=self._pods.node_of)
        self._pass_over(stream, Reason.FOREIGN_POD, times=foreign)
        if ours.devices:
            self._listener.told(stream, pb.AgentMessage(samples=ours))

    def _tell(self, stream: Stream, message: pb.AgentMessage) -> None:
        match claims.judge(claims.subject(message), node=stream.node, node_of=self._pods.node_of):
            case Claim.FOREIGN:
                self._pass_over(stream, Reason.FOREIGN_POD, times=1)
            case Claim.UNKNOWN:
                self._keep(stream, message)
            case Claim.OURS if message.HasField("fault") and not stream.told_faults.is_new(message.fault.id):
                self._pass_over(stream, Reason.REPLAYED, times=1)
            case Claim.OURS:
                self._listener.told(stream, message)

    def _keep(self, stream: Stream, message: pb.AgentMessage) -> None:
        self._pass_over(stream, Reason.UNKNOWN_POD, times=stream.unknown_pods.keep(message))

    def _pass_over(self, stream: Stream, reason: Reason, *, times: int) -> None:
        if times:
            self._metrics.refused(reason, times=times)
            log.debug("hub.passed_over", node=stream.node, reason=reason.value, times=times)
