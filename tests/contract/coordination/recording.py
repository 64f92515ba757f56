"""Messages of agents and hubs of each release, as bytes: recorded once, never changed, accepted by later releases.

``python -m tests.contract.coordination.recording RELEASE`` records today's; run it when the protocol was extended.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message import Message

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_DIRECTORY: Final = Path(__file__).with_name("recorded")

_POD: Final = pb.Pod(namespace="team", name="train-0", uid="uid-0")
_RESULT: Final = pb.StepResult(
    round="team/r1",
    pod=_POD,
    phase=pb.StepResult.STOPPED,
    reason="Killed",
    detail="killed at once",
    seconds={"stop": 0.5},
    unheld_seconds=0.25,
    attempt=2,
)
_HELLO: Final = pb.Hello(protocol=1, node="node-1", epoch=7, results=[_RESULT])
_FAULT: Final = pb.Fault(
    id="fault-1",
    pod=_POD,
    gang="team/JobSet/train",
    container="trainer",
    kind=pb.Fault.EXIT,
    code="Exit1",
    message="it ended",
    exit_code=1,
    action_class="RestartApp",
    device="GPU-0",
    age_seconds=0.5,
    alone=True,
)
_SAMPLE: Final = pb.DeviceSample(pod_uid="uid-0", device="GPU-0", utilization=0.5, clock=1.0, power=0.25)
_STOP: Final = pb.Stop(
    round="team/r1",
    attempt=2,
    cause_code="Exit1",
    cause_message="it ended",
    strategy="rerun",
    hold_seconds=30.0,
    grace_seconds=1.5,
    orders=[pb.Order(pod=_POD, action=pb.Order.HOLD, containers=["trainer"])],
)
_ANSWER: Final = pb.FaultAnswer(
    fault_id="fault-1", answer=pb.FaultAnswer.ROUND, round="team/r1", reason="MemberFailed", detail="one failed"
)

_TODAY: Final[Mapping[str, Message]] = {
    "hello": pb.AgentMessage(hello=_HELLO),
    "fault": pb.AgentMessage(fault=_FAULT),
    "result": pb.AgentMessage(result=_RESULT),
    "samples": pb.AgentMessage(samples=pb.Samples(devices=[_SAMPLE])),
    "welcome": pb.HubMessage(epoch=8, welcome=pb.Welcome(leader="hub-0", protocol=1)),
    "answer": pb.HubMessage(epoch=8, answer=_ANSWER),
    "stop": pb.HubMessage(epoch=8, stop=_STOP),
    "release": pb.HubMessage(epoch=8, release=pb.Release(round="team/r1", pod_uids=["uid-0"])),
    "abort": pb.HubMessage(epoch=8, abort=pb.Abort(round="team/r1", pod_uids=["uid-0"], reason="Cancelled")),
    "sync": pb.HubMessage(epoch=8, sync=pb.Sync()),
}


@dataclass(frozen=True, slots=True)
class Recording:
    """One message of a release: its bytes, and their content as that release describes it."""

    release: str
    name: str
    data: bytes
    says: Mapping[str, Any]
    of_hub: bool

    @property
    def parsed(self) -> Message:
        """Return today's reading of the bytes."""
        return self._kind.FromString(self.data)

    @property
    def kept(self) -> Mapping[str, Any]:
        """Return its content without the fields that were removed since then; empty if the whole message was."""
        return _without_removed(self.says, self._kind.DESCRIPTOR)

    @property
    def _kind(self) -> type[pb.HubMessage | pb.AgentMessage]:
        return pb.HubMessage if self.of_hub else pb.AgentMessage

    def __str__(self) -> str:
        return f"{self.release}-{self.name}"


def recordings() -> tuple[Recording, ...]:
    """Return all messages of all releases."""
    return tuple(
        Recording(path.stem, name, bytes.fromhex(each["bytes"]), each["says"], of_hub=each["from"] == "hub")
        for path in sorted(_DIRECTORY.glob("*.json"))
        for name, each in json.loads(path.read_text()).items()
    )


def words(message: Message) -> dict[str, Any]:
    """Return the content of a message."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def said(message: Message) -> Iterator[str]:
    """Yield the full name of each field that a message uses, down to the leaves."""
    for field, value in message.ListFields():
        yield field.full_name
        if _within(field) is not None:
            for each in value if field.is_repeated else (value,):
                yield from said(each)


def fields(kind: Descriptor) -> Iterator[str]:
    """Yield the full name of each field that a kind of message can use."""
    for field in kind.fields:
        yield field.full_name
        if (within := _within(field)) is not None:
            yield from fields(within)


def _without_removed(content: Mapping[str, Any], kind: Descriptor) -> dict[str, Any]:
    """Return a message's content without the fields whose names are reserved today."""
    today = DescriptorProto()
    kind.CopyToProto(today)
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in today.reserved_name:
            continue
        if (within := _within(kind.fields_by_name[name])) is None:
            kept[name] = value
        elif isinstance(value, list):
            kept[name] = [_without_removed(each, within) for each in value]
        else:
            kept[name] = _without_removed(value, within)
    return kept


def _within(field: FieldDescriptor) -> Descriptor | None:
    """Return the kind of message that a field holds; None for values and maps of them."""
    within = field.message_type
    return within if within is not None and not within.GetOptions().map_entry else None


@click.command()
@click.argument("release")
def _record(release: str) -> None:
    """Record what this release writes, for the tests of later ones."""
    reported = {
        name: {
            "from": "hub" if isinstance(message, pb.HubMessage) else "agent",
            "bytes": message.SerializeToString(deterministic=True).hex(),
            "says": words(message),
        }
        for name, message in _TODAY.items()
    }
    path = _DIRECTORY / f"{release}.json"
    if path.exists():
        raise click.ClickException(f"{path} exists: the messages of a release are never changed")
    path.write_text(json.dumps(reported, indent=1) + "\n")


if __name__ == "__main__":
    _record()
