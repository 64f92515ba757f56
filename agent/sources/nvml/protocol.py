"""Messages between the NVML worker and the agent: one JSON object per line on the worker's stdin and stdout."""

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.model.devices import DeviceId, DevicePartition, Gpu, PciAddress


class Condition(enum.Enum):
    """The result of querying a device. ``UNREADABLE`` means unknown, neither healthy nor lost."""

    ANSWERS = "answers"
    LOST = "lost"
    RESET_REQUIRED = "reset-required"
    UNREADABLE = "unreadable"


class EndReason(enum.Enum):
    """The reason why a worker ended by itself.

    A worker makes one successful nvmlInit; another one needs a new worker.
    """

    LIBRARY_NOT_FOUND = "library-not-found"
    VERSION_MISMATCH = "version-mismatch"
    INIT_FAILED = "init-failed"
    NO_ANSWER = "no-answer"


@dataclass(frozen=True, slots=True)
class Options:
    """The worker's options: seconds, as described in ``agent.sources.nvml.source.Periods``."""

    poll_period: float
    full_period: float
    recheck_period: float
    hang_deadline: float


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of the worker. ``call`` names an NVML call that has exceeded the hang deadline."""

    call: str | None = None


@dataclass(frozen=True, slots=True)
class DriverAbsent:
    """The library exists but no driver is loaded; the worker keeps checking."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker's last message."""

    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """One NVML index in one poll.

    ``gpu`` is None when the GPU has not been identified since nvmlInit. ``recovery_action`` (NVML field 230,
    NVML_GPU_RECOVERY_ACTION_*) is None when it could not be read, and 0 where the driver does not have the field.
    ``vitals`` is None where the GPU is lost or needs a reset.
    """

    index: int
    condition: Condition
    gpu: Gpu | None = None
    recovery_action: int | None = None
    vitals: Vitals | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One poll of every GPU.

    ``taken_at`` is Unix time in seconds, ``clock`` the node's monotonic clock at that time. ``without_events`` are GPUs
    whose events do not arrive although the driver has some for them.
    """

    taken_at: float
    clock: float
    driver_version: str
    slots: tuple[Slot, ...]
    without_events: tuple[DeviceId, ...] = ()


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid event of a GPU, or of one of its MIG instances. ``observed_at`` is Unix time in seconds."""

    observed_at: float
    code: int
    uuid: DeviceId
    pci: PciAddress
    gpu_instance: int | None = None
    compute_instance: int | None = None


class DeviceEventKind(enum.Enum):
    """The occurrences, other than Xids, that NVML reports by events of their own."""

    GPU_UNAVAILABLE = "gpu-unavailable"
    MEMORY_POISONED = "memory-poisoned"


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Another NVML event of a GPU. ``observed_at`` is Unix time in seconds."""

    observed_at: float
    kind: DeviceEventKind
    uuid: DeviceId
    pci: PciAddress


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process on the device (compute, graphics or MPS).

    ``used`` in bytes, None where the driver does not report it.
    """

    pid: int
    used: int | None


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """The current answer of one device. None means unreadable: memory in bytes, processes, recovery action."""

    uuid: DeviceId
    condition: Condition
    memory_used: int | None = None
    processes: tuple[ProcessUse, ...] | None = None
    recovery_action: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DevicesAnswer:
    """The answer to a query, in the order of the query."""

    devices: tuple[DeviceAnswer, ...]
    request: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """The agent's query for the current state of these devices."""

    request: int
    uuids: tuple[DeviceId, ...]


Message = Beat | DriverAbsent | Ended | Snapshot | XidEvent | DeviceEvent | DevicesAnswer | Query


class ProtocolError(ValueError):
    """A line that is not a valid message."""


def encode(message: Message) -> bytes:
    """Return the message as one line."""
    body = {"type": type(message).__name__, **_fields(message)}
    return json.dumps(body, default=_plain, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Decode one line. Raises ProtocolError when it is not a valid message."""
    try:
        body = json.loads(line)
        return _DECODERS[body.pop("type")](body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not a message of the NVML worker: {line[:200]!r}") from error


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Vitals):
        return {"values": _readings(value.values), "errors": _readings(value.errors), "full": value.full}
    return _fields(value)


def _fields(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _readings(readings: Mapping[Key, int]) -> list[tuple[str, int, int]]:
    return [(vital.value, link, value) for (vital, link), value in readings.items()]


def _vitals(body: Mapping[str, Any]) -> Vitals:
    values, errors = ({(Vital(name), link): value for name, link, value in body[part]} for part in ("values", "errors"))
    return Vitals(values=values, errors=errors, full=body["full"])


def _gpu(body: Mapping[str, Any]) -> Gpu:
    instances = tuple(DevicePartition(**instance) for instance in body["partitions"])
    return Gpu(**{**body, "pci": PciAddress(**body["pci"]), "partitions": instances})


def _slot(body: Mapping[str, Any]) -> Slot:
    gpu = _gpu(body["gpu"]) if body["gpu"] is not None else None
    vitals = _vitals(body["vitals"]) if body["vitals"] is not None else None
    return Slot(**{**body, "condition": Condition(body["condition"]), "gpu": gpu, "vitals": vitals})


def _snapshot(body: Mapping[str, Any]) -> Snapshot:
    slots = tuple(map(_slot, body["slots"]))
    without_events = tuple(map(DeviceId, body.get("without_events", ())))  # recorded polls may lack them
    return Snapshot(**{**body, "slots": slots, "without_events": without_events})


def _xid(body: Mapping[str, Any]) -> XidEvent:
    return XidEvent(**{**body, "pci": PciAddress(**body["pci"])})


def _device_event(body: Mapping[str, Any]) -> DeviceEvent:
    return DeviceEvent(**{**body, "pci": PciAddress(**body["pci"]), "kind": DeviceEventKind(body["kind"])})


def _device_answer(body: Mapping[str, Any]) -> DeviceAnswer:
    processes = body["processes"]
    uses = tuple(ProcessUse(**process) for process in processes) if processes is not None else None
    return DeviceAnswer(**{**body, "condition": Condition(body["condition"]), "processes": uses})


def _devices_answer(body: Mapping[str, Any]) -> DevicesAnswer:
    return DevicesAnswer(**{**body, "devices": tuple(map(_device_answer, body["devices"]))})


_DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
    "Beat": lambda body: Beat(**body),
    "DriverAbsent": lambda body: DriverAbsent(**body),
    "Ended": lambda body: Ended(**{**body, "reason": EndReason(body["reason"])}),
    "Snapshot": _snapshot,
    "XidEvent": _xid,
    "DeviceEvent": _device_event,
    "DevicesAnswer": _devices_answer,
    "Query": lambda body: Query(request=body["request"], uuids=tuple(body["uuids"])),
}
