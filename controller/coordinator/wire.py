"""Convert between messages on the wire and the controller's values. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kubemend.common import coordination_codes, plain
from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import ports
from kubemend.controller.model import rounds
from kubemend.controller.model.faults import Fault
from kubemend.controller.model.members import Member, NodeName, PodUid, Sample
from kubemend.controller.model.rounds import RoundRef, StepResult

_FAULT_KINDS: Final = coordination_codes.by_code(coordination_codes.FAULT_KINDS)
_PHASES: Final = coordination_codes.by_code(coordination_codes.STEP_PHASES)
_UID_CHARACTERS: Final = 8
_LONGEST_NAME: Final = 253 - 1 - _UID_CHARACTERS
"""Characters of an object's name to which those of its UID can be appended: the whole is the name of a subdomain."""
_ALONE: Final = "; the hub did not answer in time, so its agent restarted the container alone"
_NO_SECONDS: Final[Mapping[str, float]] = MappingProxyType({})


def fault_kind(reported: pb.Fault) -> FaultKind:
    """Return a fault's kind; OTHER if it is of a newer agent and not known here."""
    return _FAULT_KINDS.get(reported.kind, FaultKind.OTHER)


def fault(reported: pb.Fault, *, member: Member, now: float) -> Fault:
    """Return a member's fault. ``now`` is Unix time.

    The hub has checked the UID that the agent reports, but not the pod's name: Events would be about any pod. The
    message may have names that processes chose.
    """
    kind, message = fault_kind(reported), plain.text(reported.message)
    return Fault(
        id=reported.id,
        pod=member.pod,
        gang=member.gang,
        kind=kind,
        code=reported.code,
        message=f"{message}{_ALONE}" if reported.alone else message,
        at=now - max(reported.age_seconds, 0.0),
        container=reported.container,
        exit_code=reported.exit_code if kind is FaultKind.EXIT else None,
        action_class=reported.action_class,
        device=reported.device,
        alone=reported.alone,
    )


def step_result(result: pb.StepResult) -> StepResult | None:
    """Return a member's result; None if its phase is not known here."""
    phase = _PHASES.get(result.phase)
    if phase is None:
        return None
    return StepResult(
        pod=PodUid(result.pod.uid),
        phase=phase,
        reason=result.reason,
        detail=plain.text(result.detail),
        seconds=MappingProxyType(dict(result.seconds)) if result.seconds else _NO_SECONDS,
        unheld_seconds=result.unheld_seconds,
    )


def sample(reported: pb.DeviceSample) -> Sample:
    """Return the measurements of one device."""
    return Sample(PodUid(reported.pod_uid), reported.device, reported.utilization, reported.clock, reported.power)


def round_id(ref: RoundRef, *, request_uid: str = "") -> str:
    """Return the id of a round in messages; ``request_uid`` is the UID of the object that requested it.

    A request has a name of its author's choice, which an earlier round may have had: its members' agents would report
    their results in that one. Other rounds have names that are never used again.
    """
    name = f"{ref.name[:_LONGEST_NAME].rstrip('-.')}.{request_uid[:_UID_CHARACTERS]}" if request_uid else ref.name
    return f"{ref.namespace}/{name}"


def is_requested(round_id: str) -> bool:
    """Return whether a ``round_id`` is of a round that was requested: names of others have no dots."""
    return "." in round_id


class Orders:
    """The orders of one round. What all its Stops have in common is serialized once, because rounds can be large."""

    def __init__(
        self,
        round_id: str,
        *,
        attempt: int,
        code: str,
        message: str,
        hold_seconds: float,
        strategy: str = "",
        grace_seconds: float | None = None,
        containers: tuple[str, ...] = (),
        find: Callable[[PodUid], Member | None],
    ) -> None:
        """``find`` returns members by pod UID."""
        self.round_id = round_id
        self.containers = containers
        self._find = find
        self._head = ports.encode(
            pb.HubMessage(
                stop=pb.Stop(
                    round=round_id,
                    attempt=attempt,
                    cause_code=code,
                    cause_message=message,
                    strategy=strategy,
                    hold_seconds=hold_seconds,
                    grace_seconds=grace_seconds,
                )
            )
        )

    def of(self, effect: rounds.Stop | rounds.Release | rounds.Abort) -> tuple[NodeName, bytes]:
        """Return the node to send to, and the message."""
        match effect:
            case rounds.Stop():
                message = pb.HubMessage()
                for pod, kind in effect.pods.items():
                    self._order(message.stop.orders.add(), pod, kind)
                return effect.node, self._head + ports.encode(message)
            case rounds.Release():
                message = pb.HubMessage()
                message.release.round = self.round_id
                message.release.pod_uids.extend(sorted(effect.pods))
            case rounds.Abort():
                message = abort(self.round_id, pods=effect.pods, reason=effect.reason)
        return effect.node, ports.encode(message)

    def _order(self, order: pb.Order, uid: PodUid, kind: OrderKind) -> None:
        """Fill in an order in place: copying messages into messages would take longer than everything else."""
        order.pod.uid = uid
        if (member := self._find(uid)) is not None:
            order.pod.namespace, order.pod.name = member.pod.namespace, member.pod.name
        order.action = coordination_codes.ORDER_KINDS[kind]
        order.containers.extend(self.containers)


def abort(round_id: str, *, pods: frozenset[PodUid], reason: str) -> pb.HubMessage:
    """Return the message that cancels a round for these members."""
    return pb.HubMessage(abort=pb.Abort(round=round_id, pod_uids=sorted(pods), reason=reason))


def answer(
    fault_id: str, *, what: FaultAnswer, round_id: str = "", reason: str = "", detail: str = ""
) -> pb.HubMessage:
    """Return the message with the answer to a fault."""
    code = coordination_codes.FAULT_ANSWERS[what]
    return pb.HubMessage(
        answer=pb.FaultAnswer(fault_id=fault_id, answer=code, round=round_id, reason=reason, detail=detail)
    )
