"""Query NVML once in a process of its own: ``python -m agent.doctor.nvml_probe``, started by ``nvml``.

It works like the agent's worker, for the same reasons: any NVML call can block indefinitely, and killing a process in
the middle of one can wedge a GPU. So the main thread never calls NVML; it reports the hanging call, and ends the
process when stdin is closed. Signals that a terminal sends to the whole group are ignored.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass

from kubemend.agent.model.devices import Gpu
from kubemend.agent.sources.nvml import events, reader
from kubemend.agent.sources.nvml.calls import Calls, Failure, ReadError, Value
from kubemend.agent.sources.nvml.protocol import Condition, Slot


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. ``name`` is its UUID, or its index if the UUID is unknown; None means no answer."""

    name: str
    pci: str = ""
    error: str = ""
    mig: bool | None = None
    events: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """NVML's answer. ``code`` is the nvmlReturn_t of the error, 0 without one; ``error`` its text."""

    code: int = 0
    error: str = ""
    driver: str = ""
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Hanging:
    """This call has not returned within the deadline; an answer may still come."""

    call: str


Message = Answer | Hanging


class MessageError(ValueError):
    """A line that is not a valid message of the probe."""


def encode(message: Message) -> bytes:
    """Return the message as one line."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Decode one line. Raises MessageError when it is not a valid message."""
    try:
        body = json.loads(line)
        if body.pop("type") == Hanging.__name__:
            return Hanging(**body)
        return Answer(**{**body, "devices": tuple(Device(**device) for device in body["devices"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError(f"not a message of the NVML probe: {line[:200]!r}") from error


def query(nvml: reader.Reader) -> Answer:
    """Query everything from NVML once, then shut NVML down."""
    begun = nvml.init()
    if not isinstance(begun, Value):
        return _refused(begun)
    snapshot = nvml.snapshot()
    if not isinstance(snapshot, Value):
        return _refused(snapshot)
    devices = tuple(_device(nvml, slot) for slot in snapshot.value.slots)
    nvml.ask("nvmlShutdown")
    return Answer(driver=snapshot.value.driver_version, devices=devices)


def _device(nvml: reader.Reader, slot: Slot) -> Device:
    if slot.gpu is None or slot.condition is not Condition.ANSWERS:
        name = slot.gpu.uuid if slot.gpu is not None else f"index {slot.index}"
        return Device(name=name, error=slot.error or slot.condition.value)
    return Device(
        name=slot.gpu.uuid,
        pci=str(slot.gpu.pci),
        mig=_mig(nvml, slot.gpu),
        events=_supports_xid_events(nvml, slot.gpu),
    )


def _mig(nvml: reader.Reader, gpu: Gpu) -> bool | None:
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
    mode = nvml.ask("nvmlDeviceGetMigMode", handle.value) if isinstance(handle, Value) else handle
    return bool(mode.value[0]) if isinstance(mode, Value) else None


def _supports_xid_events(nvml: reader.Reader, gpu: Gpu) -> bool | None:
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
    types = nvml.ask("nvmlDeviceGetSupportedEventTypes", handle.value) if isinstance(handle, Value) else handle
    return bool(types.value & events.XID) if isinstance(types, Value) else None


def _refused(failure: Failure) -> Answer:
    if isinstance(failure, ReadError):
        return Answer(code=failure.code, error=failure.text)
    return Answer(code=reader.UNKNOWN, error=str(failure))


def main(hang_deadline: float) -> None:
    """Query once, on this process's stdin and stdout. ``hang_deadline`` is in seconds."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die
    out = os.dup(1)
    os.dup2(2, 1)  # output printed by a library must not mix with messages

    def announce(call: str | None) -> None:
        if call is not None:
            os.write(out, encode(Hanging(call)))

    calls = Calls(deadline=hang_deadline, announce=announce, came_back=lambda: None)
    thread = threading.Thread(target=_query_and_exit, args=(calls, out), name="nvml", daemon=True)
    thread.start()
    while True:
        if calls.readable(0) and not os.read(0, 4096):
            os._exit(0)  # skips a hanging call, which would block a normal exit indefinitely


def _query_and_exit(calls: Calls, out: int) -> None:
    import pynvml

    os.write(out, encode(query(reader.Reader(pynvml=pynvml, calls=calls))))
    os._exit(0)


def _die(failed: threading.ExceptHookArgs) -> None:
    """End the process when its thread fails: otherwise it would never end."""
    threading.__excepthook__(failed)
    os._exit(1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
