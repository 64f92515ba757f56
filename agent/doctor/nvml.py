"""Check with NVML whether the driver answers for each GPU, in a process of its own (``nvml_probe``)."""

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from kubemend.agent.doctor import nvml_probe
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.sources.nvml import component_status, detection, reader
from kubemend.agent.sources.nvml.child import Child
from kubemend.common import blocking, process
from kubemend.common.components import ComponentState, ComponentStatus

GPUS, EVENTS = NAMES = ("nvml", "gpu-events")

_STOP_SECONDS = 5.0


async def gpus(*, sysfs: Path, proc: Path, hang_deadline: float) -> Sequence[Check]:
    """Check NVML. ``hang_deadline`` is the maximum duration of one call, in seconds."""
    on_bus = await blocking.once(lambda: detection.gpus_on_bus(sysfs), name="doctor")
    of_driver = await blocking.once(lambda: detection.gpus_of_driver(sysfs, proc=proc), name="doctor")
    try:
        message = await _ask(hang_deadline)
    except OSError as error:
        return _stopped(component_status.not_started(error))
    if isinstance(message, nvml_probe.Hanging):
        return _stopped(component_status.unresponsive(call=message.call, seconds=hang_deadline))
    return judge(message, on_bus=on_bus, of_driver=of_driver)


def judge(answer: nvml_probe.Answer, *, on_bus: int, of_driver: Collection[PciAddress] = ()) -> Sequence[Check]:
    """Return the checks for an answer on a node with so many NVIDIA GPUs on its PCI bus, and these with the driver."""
    if answer.code == reader.LIBRARY_NOT_FOUND:
        return _stopped(component_status.no_library(seen_gpus=False, on_bus=on_bus))
    if answer.code == reader.DRIVER_NOT_LOADED:
        return _stopped(component_status.no_driver(seen_gpus=False, on_bus=on_bus))
    if answer.code:
        return _stopped(component_status.not_initialised(answer.error))
    return _devices_check(answer, of_driver=of_driver), _events_check(answer)


def _devices_check(answer: nvml_probe.Answer, *, of_driver: Collection[PciAddress]) -> Check:
    silent = [f"GPU {device.name}: {device.error}" for device in answer.devices if device.error]
    what = f"driver {answer.driver or 'unknown'}, {len(answer.devices)} GPUs{_mig(answer)}"
    if silent:
        hint = "run nvidia-smi on the node and look for NVRM in its kernel log"
        return Check(GPUS, Result.FAIL, f"{what}; {'; '.join(silent)}", hint)
    if not answer.devices:
        hint = "give the agent's container all GPUs (NVIDIA_VISIBLE_DEVICES=all, or privileged)"
        return Check(GPUS, Result.FAIL, f"{what}: NVML lists none", hint)
    if unlisted := sorted({str(pci) for pci in of_driver} - {device.pci for device in answer.devices}):
        hint = "look for NVRM in the node's kernel log: the driver could not start it; reset the GPU or reboot the node"
        return Check(GPUS, Result.FAIL, f"{what}; NVML does not list GPU {', '.join(unlisted)} of its driver", hint)
    return Check(GPUS, Result.OK, what)


def _mig(answer: nvml_probe.Answer) -> str:
    modes = [device.mig for device in answer.devices if device.mig is not None]
    if not modes:
        return ""
    return f", MIG on {sum(modes)} of them" if any(modes) else ", MIG off"


def _events_check(answer: nvml_probe.Answer) -> Check:
    if not answer.devices:
        return Check(EVENTS, Result.UNKNOWN, "there is no GPU to query", f"see {GPUS}")
    without = [device.name for device in answer.devices if device.events is False]
    unasked = [device.name for device in answer.devices if device.events is None]
    if unasked:
        return Check(EVENTS, Result.UNKNOWN, f"could not be queried: {', '.join(unasked)}", f"see {GPUS}")
    if without:
        what = (
            f"no Xid events from {', '.join(without)}: those GPUs are polled, and their Xids come from the kernel log"
        )
        return Check(EVENTS, Result.WARN, what, "make sure that the kernel log can be read")
    return Check(EVENTS, Result.OK, "NVML reports Xids as events")


def _stopped(status: ComponentStatus) -> Sequence[Check]:
    """Return the checks for an NVML without an answer. A node with GPUs on its bus needs NVML."""
    if status.state is ComponentState.IDLE:
        return tuple(Check(name, Result.NOT_NEEDED, status.message) for name in NAMES)
    return (
        Check(GPUS, Result.FAIL, status.message, status.hint),
        Check(EVENTS, Result.UNKNOWN, "NVML could not be queried", f"see {GPUS}"),
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
            with contextlib.suppress(TimeoutError):  # a hanging one is left behind: killing it could wedge its GPU
                async with asyncio.timeout(_STOP_SECONDS):
                    await child.ended()


async def _crashed(child: Child) -> nvml_probe.Answer:
    """Return an answer for a probe that ended without one."""
    status, output = await child.ended(), await child.stderr.read()
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    last = output.decode(errors="replace").strip().rpartition("\n")[2]
    return nvml_probe.Answer(code=reader.UNKNOWN, error=f"the probe process ended {how} ({last or 'no output'})")


@contextlib.contextmanager
def _child(argv: Sequence[str]) -> Iterator[Child]:
    child = Child(argv, env=os.environ)
    try:
        yield child
    finally:
        child.close_pipes()
