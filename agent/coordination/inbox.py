"""What the hub says, obeyed: each message may come twice, late or never, and what makes no sense is counted only."""

from collections.abc import Callable

import structlog

from agent.coordination import ports, wire
from agent.coordination.faults import OpenFaults
from agent.coordination.fence import Fence
from agent.coordination.metrics import IN, HubMetrics
from agent.coordination.troubles import Rank, Trouble, TroubleError
from agent.model.rounds import Order
from agent.model.workloads import PodRef, PodUid
from common import contained
from common.pb.coordination.v1 import coordination_pb2 as pb

log = structlog.get_logger(__name__)


class StaleLeaderError(Exception):
    """The one at the other end leads no longer: there has been a higher epoch."""


class Inbox:
    """Takes messages in, one after another. ``begin`` starts an order for a pod, ``say_hello`` tells all anew."""

    def __init__(
        self,
        *,
        fence: Fence,
        rounds: ports.Rounds,
        faults: OpenFaults,
        begin: Callable[[Order, PodRef], None],
        say_hello: Callable[[], None],
        metrics: HubMetrics,
    ) -> None:
        self._fence = fence
        self._rounds = rounds
        self._faults = faults
        self._begin = begin
        self._say_hello = say_hello
        self._metrics = metrics

    async def take(self, message: pb.HubMessage | None) -> str | None:
        """Obey a message; return the leader's name when it is a Welcome. None are bytes that are no message.

        Raises StaleLeaderError when a leader welcomes us that is none any more, TroubleError when it is too old for us.
        """
        body = message.WhichOneof("body") if message is not None else None
        self._metrics.messages.labels(IN, body or "unknown").inc()
        if message is None:
            self._ignored("malformed", error="not a message of this protocol")
        elif body is None:
            self._ignored("unknown")
        elif not await self._fence.admits(message.epoch):
            self._not_admitted(message.epoch, body=body)
        elif body == "welcome":
            return _leader(message.welcome)
        else:
            with contained.within(contained.Part.HUB, body):
                self._obey(message, body)
        return None

    def _not_admitted(self, epoch: int, *, body: str) -> None:
        """Pass a message over; raise StaleLeaderError where it is the leader's first."""
        if self._fence.believes(epoch):
            reason, why = "old-epoch", f"its epoch is {epoch}, and {self._fence.obeyed} was obeyed already"
        else:
            reason, why = "no-such-epoch", f"its epoch is {epoch}, and there cannot have been so many leaders"
        self._ignored(reason, body=body, epoch=epoch, obeyed=self._fence.obeyed)
        if body == "welcome":
            raise StaleLeaderError(why)

    def _obey(self, message: pb.HubMessage, body: str) -> None:
        try:
            match body:
                case "answer":
                    self._answer(message.answer)
                case "stop":
                    self._stop(message.stop)
                case "release":
                    self._rounds.release(message.release.round, _uids(message.release))
                case "abort":
                    reason = message.abort.reason
                    self._rounds.abort(message.abort.round, _uids(message.abort), reason=reason)
                case "sync":
                    self._say_hello()
        except wire.MalformedError as error:
            self._ignored("malformed", body=body, error=str(error))

    def _answer(self, said: pb.FaultAnswer) -> None:
        fault_id, taken = wire.answer(said)
        fault = self._faults.answered(fault_id, taken)
        if fault is None:
            self._ignored("late-answer", fault=fault_id)
            return
        self._metrics.answers.labels(fault.kind.value, taken.value).inc()
        log.info(
            "hub.fault_answered",
            fault=fault_id,
            container=str(fault.target),
            cause=fault.code,
            answer=taken.value,
            round=said.round,
            reason=said.reason,
            detail=said.detail,
        )

    def _stop(self, stop: pb.Stop) -> None:
        orders = wire.orders(stop)
        self._faults.ordered({order.pod for order in orders})
        for order, said in zip(orders, stop.orders, strict=True):
            self._begin(order, wire.pod_ref(said.pod))

    def _ignored(self, reason: str, **about: object) -> None:
        self._metrics.ignored.labels(reason).inc()
        log.debug("hub.ignored", reason=reason, **about)


def _leader(welcome: pb.Welcome) -> str:
    """Return the leader's name. Raises TroubleError when it speaks a protocol that we do not understand any more."""
    protocol = welcome.protocol or 1  # hubs of protocol 1 may not name it
    if protocol < wire.OLDEST:
        what = f"the hub {welcome.leader} speaks protocol {protocol}, this agent {wire.OLDEST} to {wire.PROTOCOL}"
        raise TroubleError(Trouble(what, "upgrade the controller", Rank.REFUSED))
    return welcome.leader


def _uids(said: pb.Release | pb.Abort) -> frozenset[PodUid]:
    """Return the pods that are let go. Raises MalformedError: none at all would be all of the round for ``Rounds``."""
    if not said.round or not said.pod_uids:
        raise wire.MalformedError("a word on no pods")
    return frozenset(PodUid(uid) for uid in said.pod_uids)
