"""The GPUs, by NVML: does the driver answer for each of them. Asked in a process of its own (``nvml_probe``)."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.doctor import nvml_probe
from agent.doctor.checks import Check, Result
from agent.sources.nvml import presence, reader, statuses
from agent.sources.nvml.child import Child
from common import own_thread, process
from common.parts import PartState, PartStatus

GPUS, EVENTS = NAMES = ("nvml", "gpu-events")

_STOP_SECONDS = 5.0


async def gpus(*, sysfs: Path, hang_deadline: float) -> Sequence[Check]:
    """Say what NVML tells. ``hang_deadline`` is how long one call may take, in seconds."""
    on_bus = await own_thread.once(lambda: presence.gpus_on_bus(sysfs), name="doctor")
    try:
        message = await _ask(hang_deadline)
    except OSError as error:
        return _stopped(statuses.not_started(error))
    if isinstance(message, nvml_probe.Hanging):
        return _stopped(statuses.unresponsive(call=message.call, seconds=hang_deadline))
    return judge(message, on_bus=on_bus)


def judge(answer: nvml_probe.Answer, *, on_bus: int) -> Sequence[Check]:
    """Say what an answer means on a node with so many NVIDIA GPUs on its PCI bus."""
    if answer.code == reader.LIBRARY_NOT_FOUND:
        return _stopped(statuses.no_library(seen_gpus=False, on_bus=on_bus))
    if answer.code == reader.DRIVER_NOT_LOADED:
        return _stopped(statuses.no_driver(seen_gpus=False, on_bus=on_bus))
    if answer.code:
        return _stopped(statuses.not_initialised(answer.error))
    return _devices_check(answer), _events_check(answer)


def _devices_check(answer: nvml_probe.Answer) -> Check:
    silent = [f"GPU {device.name}: {device.error}" for device in answer.devices if device.error]
    what = f"driver {answer.driver or 'unknown'}, {len(answer.devices)} GPUs{_mig(answer)}"
    if silent:
        mend = "run nvidia-smi on the node and look for NVRM in its kernel log"
        return Check(GPUS, Result.FAIL, f"{what}; {'; '.join(silent)}", mend)
    if not answer.devices:
        mend = "give the agent's container all GPUs (NVIDIA_VISIBLE_DEVICES=all, or privileged)"
        return Check(GPUS, Result.FAIL, f"{what}: NVML shows none", mend)
    return Check(GPUS, Result.OK, what)


def _mig(answer: nvml_probe.Answer) -> str:
    modes = [device.mig for device in answer.devices if device.mig is not None]
    if not modes:
        return ""
    return f", MIG on {sum(modes)} of them" if any(modes) else ", MIG off"


def _events_check(answer: nvml_probe.Answer) -> Check:
    if not answer.devices:
        return Check(EVENTS, Result.UNKNOWN, "there is no GPU to ask", f"see {GPUS}")
    without = [device.name for device in answer.devices if device.events is False]
    unasked = [device.name for device in answer.devices if device.events is None]
    if unasked:
        return Check(EVENTS, Result.UNKNOWN, f"could not be asked: {', '.join(unasked)}", f"see {GPUS}")
    if without:
        what = (
            f"no Xid events from {', '.join(without)}: those GPUs are polled, and their Xids come from the kernel log"
        )
        return Check(EVENTS, Result.WARN, what, "see that the kernel log can be read")
    return Check(EVENTS, Result.OK, "NVML tells Xids as they happen")


def _stopped(status: PartStatus) -> Sequence[Check]:
    """Return the checks for an NVML that told nothing. A node with GPUs on its bus needs one."""
    if status.state is PartState.IDLE:
        return tuple(Check(name, Result.NOT_NEEDED, status.message) for name in NAMES)
    return (
        Check(GPUS, Result.FAIL, status.message, status.mend),
        Check(EVENTS, Result.UNKNOWN, "NVML could not be asked", f"see {GPUS}"),
    )


async def _ask(hang_deadline: float) -> nvml_probe.Message:
    """Run the probe and return its first message. Raises OSError when it cannot be started."""
    argv = process.helper_command(nvml_probe.__name__, str(hang_deadline))
    with _child(argv) as child:
        await child.connect()
        try:
            line = await child.stdout.readline()
            return nvml_probe.decode(line) if line.endswith(b"\n") else await _crashed(child)
        finally:
            child.close_stdin()
            with contextlib.suppress(TimeoutError):  # one that hangs is left behind: killing it could wedge its GPU
                async with asyncio.timeout(_STOP_SECONDS):
                    await child.ended()


async def _crashed(child: Child) -> nvml_probe.Answer:
    """Return an answer in place of the one that a probe that ends without any has not given."""
    status, words = await child.ended(), await child.stderr.read()
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    last = words.decode(errors="replace").strip().rpartition("\n")[2]
    return nvml_probe.Answer(code=reader.UNKNOWN, error=f"a process that asks it ends {how} ({last or 'no word'})")


@contextlib.contextmanager
def _child(argv: Sequence[str]) -> Iterator[Child]:
    child = Child(argv, env=os.environ)
    try:
        yield child
    finally:
        child.let_go()
