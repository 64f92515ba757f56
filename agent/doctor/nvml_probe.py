"""One look at NVML in a process of its own: ``python -m agent.doctor.nvml_probe``, started by ``nvml``.

Like the agent's worker, and for its reasons: any NVML call can block for ever, and to kill a process in the middle of
one can wedge a GPU. So the main thread never calls NVML; it says which call hangs, and ends the process when stdin is
closed. Signals that a terminal sends to the whole group are ignored.
"""

import dataclasses
import json
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass

from agent.model.devices import Gpu
from agent.sources.nvml import events, reader
from agent.sources.nvml.calls import Calls
from agent.sources.nvml.outcomes import Failure, ReadError, Value
from agent.sources.nvml.protocol import Condition, Slot


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. ``name`` is its UUID, or its index where it has not told that; None is "it did not say"."""

    name: str
    error: str = ""
    mig: bool | None = None
    events: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What NVML said. ``code`` is the nvmlReturn_t that stood in the way, 0 when none did; ``error`` its text."""

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
    """A line that is none of the probe's messages."""


def encode(message: Message) -> bytes:
    """Return the message as one line."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read one line. Raises MessageError when it is none of our messages."""
    try:
        body = json.loads(line)
        if body.pop("type") == Hanging.__name__:
            return Hanging(**body)
        return Answer(**{**body, "devices": tuple(Device(**device) for device in body["devices"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError(f"not a message of the NVML probe: {line[:200]!r}") from error


def look(nvml: reader.Reader) -> Answer:
    """Ask NVML about everything once, and let go of it."""
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
    return Device(name=slot.gpu.uuid, mig=_mig(nvml, slot.gpu), events=_tells_xids(nvml, slot.gpu))


def _mig(nvml: reader.Reader, gpu: Gpu) -> bool | None:
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
    mode = nvml.ask("nvmlDeviceGetMigMode", handle.value) if isinstance(handle, Value) else handle
    return bool(mode.value[0]) if isinstance(mode, Value) else None


def _tells_xids(nvml: reader.Reader, gpu: Gpu) -> bool | None:
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
    types = nvml.ask("nvmlDeviceGetSupportedEventTypes", handle.value) if isinstance(handle, Value) else handle
    return bool(types.value & events.XID) if isinstance(types, Value) else None


def _refused(failure: Failure) -> Answer:
    if isinstance(failure, ReadError):
        return Answer(code=failure.code, error=failure.text)
    return Answer(code=reader.UNKNOWN, error=str(failure))


def main(hang_deadline: float) -> None:
    """Look once, on this process's stdin and stdout. ``hang_deadline`` is in seconds."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is none of our messages

    def say(call: str | None) -> None:
        if call is not None:
            os.write(out, encode(Hanging(call)))

    calls = Calls(deadline=hang_deadline, announce=say, came_back=lambda: None)
    thread = threading.Thread(target=_look_to_exit, args=(calls, out), name="nvml", daemon=True)
    thread.start()
    while True:
        ready, _, _ = select.select([0], [], [], min(hang_deadline, calls.until_due()))
        if not ready:
            calls.check()
        elif not os.read(0, 4096):
            os._exit(0)  # past a hanging call, which would hold up a normal exit for ever


def _look_to_exit(calls: Calls, out: int) -> None:
    import pynvml

    os.write(out, encode(look(reader.Reader(pynvml=pynvml, calls=calls))))
    os._exit(0)


def _die(failed: threading.ExceptHookArgs) -> None:
    """End the process when its thread fails: nobody else would."""
    threading.__excepthook__(failed)
    os._exit(1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
