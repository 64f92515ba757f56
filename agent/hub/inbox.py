"""Process the hub's messages. Each may come twice, late or never; a meaningless one is counted and ignored."""

import asyncio
from collections.abc import Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.hub import wire
from kubemend.agent.hub.errors import HubError, HubProblem, Severity
from kubemend.agent.hub.fence import Fence
from kubemend.agent.hub.metrics import IN, HubMetrics
from kubemend.agent.hub.open_faults import OpenFaults
from kubemend.agent.model.workloads import PodUid
from kubemend.common import contained, coordination
from kubemend.common.coordination import PROTOCOL
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

log = structlog.get_logger(__name__)


class StaleLeaderError(Exception):
    """The peer no longer leads: a higher epoch exists."""


class Inbox:
    """Process messages in order.

    - Orders run in ``tasks``; ``send_hello`` sends the full state again.
    - ``settled`` receives the id of a fault that the hub has answered, and that needs no report any more.
    """

    def __init__(
        self,
        *,
        fence: Fence,
        rounds: ports.Rounds,
        faults: OpenFaults,
        tasks: asyncio.TaskGroup,
        send_hello: Callable[[], None],
        settled: Callable[[str], None],
        metrics: HubMetrics,
    ) -> None:
        self._fence = fence
        self._rounds = rounds
        self._faults = faults
        self._tasks = tasks
        self._send_hello = send_hello
        self._settled = settled
        self._metrics = metrics

    async def receive(self, message: pb.HubMessage | None) -> str | None:
        """Process a message; return the leader's name if it is a Welcome. None: the bytes are no message.

        Raises StaleLeaderError if a previous leader welcomes the agent, HubError if the leader's protocol is too old.
        """
        body = message.WhichOneof("body") if message is not None else None
        self._metrics.messages.labels(IN, body or "unknown").inc()
        if message is None:
            self._ignored("malformed", error="not a message of this protocol")
        elif body is None:
            self._ignored("unknown")
        elif not await self._fence.admits(message.epoch):
            self._reject(message.epoch, body=body)
        elif body == "welcome":
            return _leader(message.welcome)
        else:
            with contained.within(contained.Part.HUB, body):
                self._process(message, body)
        return None

    def _reject(self, epoch: int, *, body: str) -> None:
        """Ignore a message; raise StaleLeaderError if it is the leader's first."""
        if self._fence.believes(epoch):
            reason, message = "old-epoch", f"its epoch is {epoch}, and {self._fence.obeyed} was accepted already"
        else:
            reason, message = (
                "no-such-epoch",
                f"its epoch {epoch} is implausible: there cannot have been so many leaders",
            )
        self._ignored(reason, body=body, epoch=epoch, obeyed=self._fence.obeyed)
        if body == "welcome":
            raise StaleLeaderError(message)

    def _process(self, message: pb.HubMessage, body: str) -> None:
        try:
            match body:
                case "answer":
                    self._answer(message.answer)
                case "stop":
                    self._stop(message.stop)
                case "release":
                    self._free(pods := _uids(message.release), by_release=True)
                    self._rounds.release(message.release.round, pods)
                case "abort":
                    pods, reason = _uids(message.abort), message.abort.reason
                    if reason == coordination.CANCELLED:
                        self._free(pods, by_release=False)
                    self._rounds.abort(message.abort.round, pods, reason=reason)
                case "sync":
                    self._send_hello()
        except wire.MalformedError as error:
            self._ignored("malformed", body=body, error=str(error))

    def _answer(self, message: pb.FaultAnswer) -> None:
        fault_id, taken = wire.answer(message)
        fault = self._faults.answered(fault_id, taken)
        if fault is None:
            self._ignored("late-answer", fault=fault_id)
            return
        if not self._faults.is_open(fault_id):
            self._settled(fault_id)
        self._metrics.answers.labels(fault.kind.value, taken.value).inc()
        log.info(
            "hub.fault_answered",
            fault=fault_id,
            container=str(fault.target),
            cause=fault.code,
            answer=taken.value,
            round=message.round,
            reason=message.reason,
            detail=message.detail,
        )

    def _stop(self, stop: pb.Stop) -> None:
        orders = wire.orders(stop)
        for fault_id in self._faults.ordered({order.pod for order in orders}):
            self._settled(fault_id)
        for order, message in zip(orders, stop.orders, strict=True):
            pod = wire.pod_ref(message.pod)
            work = self._rounds.handle_order(order, pod=pod)
            self._tasks.create_task(work, name=f"round {order.round} of {pod}")

    def _free(self, pods: frozenset[PodUid], *, by_release: bool) -> None:
        for fault_id in self._faults.freed(pods, by_release=by_release):
            self._settled(fault_id)

    def _ignored(self, reason: str, **about: object) -> None:
        self._metrics.ignored.labels(reason).inc()
        log.debug("hub.ignored", reason=reason, **about)


def _leader(welcome: pb.Welcome) -> str:
    """Return the leader's name. Raises HubError if its protocol is older than this agent supports."""
    protocol = welcome.protocol or 1  # hubs of protocol 1 may not name it
    if protocol < wire.OLDEST:
        supported = f"{wire.OLDEST} to {PROTOCOL}"
        what = f"the hub {welcome.leader} speaks protocol {protocol}, this agent supports {supported}"
        raise HubError(HubProblem(what, "Upgrade the controller.", Severity.REFUSED))
    return welcome.leader


def _uids(message: pb.Release | pb.Abort) -> frozenset[PodUid]:
    """Return the pods to free. Raises MalformedError if there are none, which ``Rounds`` would take as all."""
    if not message.round or not message.pod_uids:
        raise wire.MalformedError("a release or abort without pods")
    return frozenset(PodUid(uid) for uid in message.pod_uids)
