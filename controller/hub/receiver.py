"""Turn an agent's bytes into messages that the listener can trust: about pods of the agent's own node only."""

import time

import structlog

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import messages, pod_authorization
from kubemend.controller.hub.messages import Limits
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.pod_authorization import Claim
from kubemend.controller.hub.ports import Listener, Pods
from kubemend.controller.hub.refusals import Reason, RefusedError
from kubemend.controller.hub.streams import Stream

log = structlog.get_logger(__name__)


class MessageReceiver:
    """Receive all streams and notify the listener.

    A message that is not allowed is counted and dropped, or ends the stream.
    """

    def __init__(self, *, listener: Listener, pods: Pods, metrics: HubMetrics, limits: Limits) -> None:
        self._listener = listener
        self._pods = pods
        self._metrics = metrics
        self._limits = limits

    def pod_bound(self, stream: Stream, uid: str) -> None:
        """Deliver the messages of this stream about a pod that was not known when they arrived."""
        for message in stream.unknown_pods.pop(uid):
            self._deliver(stream, message)

    def receive(self, stream: Stream, data: bytes) -> None:
        """Process one message. Raises RefusedError if it ends the stream."""
        try:
            message = messages.parse(data, limits=self._limits)
            if message.WhichOneof("body") == "hello":
                self.hello(stream, messages.hello_of(message, node=stream.node))
            elif message.WhichOneof("body") == "samples":
                self._deliver_samples(stream, message.samples)
            else:
                self._deliver(stream, message)
        except RefusedError as error:
            if error.ends_stream:
                raise
            self._ignore(stream, error.reason, times=1)

    def hello(self, stream: Stream, hello: pb.Hello) -> None:
        """Process a Hello; it replaces everything that was reported before."""
        stream.reported_faults.clear()
        stream.unknown_pods.clear()
        parts = pod_authorization.sort_hello(hello, node=stream.node, node_of=self._pods.node_of)
        self._ignore(stream, Reason.FOREIGN_POD, times=parts.foreign)
        self._listener.hello(stream, parts.hello)
        for message in parts.unknown:
            self._defer(stream, message)

    def _deliver_samples(self, stream: Stream, samples: pb.Samples) -> None:
        ours, foreign = pod_authorization.sort_samples(samples, node=stream.node, node_of=self._pods.node_of)
        self._ignore(stream, Reason.FOREIGN_POD, times=foreign)
        if ours.devices:
            self._listener.received(stream, pb.AgentMessage(samples=ours))

    def _deliver(self, stream: Stream, message: pb.AgentMessage) -> None:
        match pod_authorization.judge(pod_authorization.subject(message), node=stream.node, node_of=self._pods.node_of):
            case Claim.FOREIGN:
                self._ignore(stream, Reason.FOREIGN_POD, times=1)
            case Claim.UNKNOWN:
                self._defer(stream, message)
            case Claim.OURS if message.HasField("fault") and not stream.reported_faults.is_new(message.fault.id):
                self._ignore(stream, Reason.REPLAYED, times=1)
            case Claim.OURS:
                self._listener.received(stream, message)

    def _defer(self, stream: Stream, message: pb.AgentMessage) -> None:
        self._ignore(stream, Reason.UNKNOWN_POD, times=stream.unknown_pods.keep(message, now=time.monotonic()))

    def _ignore(self, stream: Stream, reason: Reason, *, times: int) -> None:
        if times:
            self._metrics.refused(reason, times=times)
            log.debug("hub.message_ignored", node=stream.node, reason=reason.value, times=times)
