"""Convert the agent's values to messages of coordination/v1 and back. Pure."""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from kubemend.agent.hub.open_faults import Fault
from kubemend.agent.model import rounds
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.agent.restart import options
from kubemend.common import coordination_codes
from kubemend.common.coordination import FaultAnswer
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

OLDEST: Final = 1
"""The oldest hub protocol that this agent supports. A newer hub decides itself whether it supports this agent."""
LONGEST_TEXT: Final = 1024
"""Maximum characters of a text for people; the rest is cut off."""
LONGEST_WORD: Final = 128
"""Maximum characters of a code or a name."""
LONGEST_HOLD: Final = 3600.0
"""Maximum plausible hold of a member in seconds."""

_UNKNOWN: Final = -1.0
_ANSWERS: Final = coordination_codes.by_code(coordination_codes.FAULT_ANSWERS)
_ORDERS: Final = coordination_codes.by_code(coordination_codes.ORDER_KINDS)


class MalformedError(ValueError):
    """A message of the hub that makes no sense."""


def pod(ref: PodRef) -> pb.Pod:
    """Return a pod by name and UID."""
    return pb.Pod(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def pod_ref(of: pb.Pod) -> PodRef:
    """Return the pod reference of a message."""
    return PodRef(namespace=of.namespace, name=of.name, uid=PodUid(of.uid))


def fault(of: Fault, *, age: float, alone: bool = False) -> pb.AgentMessage:
    """Return a fault as a message; ``age`` in seconds, ``alone``: its member is restarted by itself."""
    return pb.AgentMessage(
        fault=pb.Fault(
            id=of.id,
            pod=pod(of.target.pod),
            gang=str(of.gang),
            container=of.target.name,
            kind=coordination_codes.FAULT_KINDS[of.kind],
            code=_code(of.code),
            message=_text(of.message),
            exit_code=of.exit_code,
            action_class=of.action.value,
            device=_code(of.device),
            age_seconds=age,
            alone=alone,
        )
    )


def result(of: rounds.StepResult) -> pb.StepResult:
    """Return a member's state as a message."""
    return pb.StepResult(
        round=of.round,
        pod=pod(of.pod),
        phase=coordination_codes.STEP_PHASES[of.phase],
        reason=_code(of.reason),
        detail=_text(of.detail),
        seconds={_code(phase): max(0.0, length) for phase, length in of.seconds.items()},
        unheld_seconds=max(0.0, of.unheld_seconds),
        attempt=of.attempt,
    )


def samples(loads: Mapping[tuple[PodUid, DeviceId], Load]) -> pb.Samples:
    """Return the utilization of members' devices as a message."""
    return pb.Samples(
        devices=[
            pb.DeviceSample(
                pod_uid=uid,
                device=device,
                utilization=_share(load.utilization),
                clock=_share(load.clock),
                power=_share(load.power),
            )
            for (uid, device), load in loads.items()
        ]
    )


def deserialized(data: bytes) -> pb.HubMessage | None:
    """Return the hub's message; None if the bytes are not one."""
    message = pb.HubMessage()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def answer(message: pb.FaultAnswer) -> tuple[str, FaultAnswer]:
    """Return the id of the answered fault, and the answer. Raises MalformedError."""
    taken = _ANSWERS.get(message.answer)
    if not message.fault_id or taken is None:
        raise MalformedError(f"invalid answer {message.answer} to fault {message.fault_id!r}")
    return message.fault_id, taken


def orders(stop: pb.Stop) -> tuple[rounds.Order, ...]:
    """Return a round's order for each member. Raises MalformedError: no order is carried out in part."""
    if not stop.round or not stop.orders:
        raise MalformedError("an order without a round, or without pods")
    if not 0 < stop.hold_seconds <= LONGEST_HOLD:  # also rejects NaN
        raise MalformedError(f"invalid hold of {stop.hold_seconds} s")
    grace = stop.grace_seconds if stop.HasField("grace_seconds") else None
    if grace is not None and not 0 <= grace <= options.LONGEST_GRACE:
        raise MalformedError(f"invalid grace period of {grace} s")
    return tuple(_order(stop, each, grace=grace) for each in stop.orders)


def _order(stop: pb.Stop, each: pb.Order, *, grace: float | None) -> rounds.Order:
    kind = _ORDERS.get(each.action)
    if not each.pod.uid or kind is None:
        raise MalformedError(f"invalid order {each.action} for pod {each.pod.uid!r}")
    return rounds.Order(
        round=stop.round,
        attempt=stop.attempt,
        pod=PodUid(each.pod.uid),
        kind=kind,
        cause_code=stop.cause_code,
        cause_message=stop.cause_message,
        hold_seconds=stop.hold_seconds,
        containers=frozenset(each.containers),
        strategy=stop.strategy,
        grace_seconds=grace,
    )


def _text(of: str) -> str:
    """Return a text that protobuf accepts: texts of the kernel and of runtimes may not be Unicode."""
    return of[:LONGEST_TEXT].encode(errors="replace").decode()


def _code(of: str) -> str:
    """Return a code or a name that the hub accepts, because an invalid one would end the stream."""
    return "".join(sign if "!" <= sign <= "~" else "-" for sign in of[:LONGEST_WORD])


def _share(value: float | None) -> float:
    return value if value is not None else _UNKNOWN
