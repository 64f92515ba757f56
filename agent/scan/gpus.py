"""The GPUs, by the agent's own NVML worker: one poll, and one question to each GPU."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent.health.catalog import Catalog, FaultKey
from agent.model.devices import GpuUuid, Inventory
from agent.model.findings import Finding
from agent.scan.found import GpusFound
from agent.scan.report import Unseen
from agent.sources.nvml import presence
from agent.sources.nvml.protocol import DeviceAnswer, DevicesAnswer
from agent.sources.nvml.questions import Unknown
from agent.sources.nvml.source import NvmlSource, Periods
from common.parts import PartState, PartStatus

PART = "nvml"

_HANG_SHARE, _STOP_SHARE = 0.6, 0.15
"""Of the time that there is: for one NVML call, and for the worker's end."""

_LOOK_CLOSER = "run nvidia-smi on the machine and look for NVRM in its kernel log"
_SLOW = "nvmlInit takes seconds per GPU without persistence mode: turn that on, or give more time by --timeout"


async def look(sysfs: Path, *, catalog: Catalog, timeout: float) -> GpusFound:
    """Look once. It takes ``timeout`` seconds at most; a worker that hangs in the driver is left to end by itself."""
    findings: list[Finding] = []
    told: asyncio.Future[PartStatus] = asyncio.get_running_loop().create_future()

    def report(status: PartStatus) -> None:
        if not told.done():  # whatever comes first is the answer: a poll, or what stands in its way
            told.set_result(status)

    source = NvmlSource(
        emit=findings.append,
        classify=lambda kind, code: catalog.action(FaultKey(kind, code)),
        report=report,
        periods=Periods(hang_deadline=_HANG_SHARE * timeout, stop_deadline=_STOP_SHARE * timeout),
        sysfs=sysfs,
    )
    deadline = asyncio.get_running_loop().time() + (1 - _STOP_SHARE) * timeout
    async with _running(source) as running:
        try:
            async with asyncio.timeout_at(deadline):
                either: set[asyncio.Future[Any]] = {running, told}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # it ends by an error only
                found = await _found(source, told.result(), findings, deadline=deadline)
                return replace(found, unseen=found.unseen or tuple(_not_shown(found.inventory, sysfs)))
        except TimeoutError:
            what = f"NVML has not answered within {(1 - _STOP_SHARE) * timeout:g} s"
            return GpusFound(unseen=(Unseen(PART, what, _SLOW),))


@contextlib.asynccontextmanager
async def _running(source: NvmlSource) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(source.run(), name="nvml")
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _found(source: NvmlSource, status: PartStatus, findings: list[Finding], *, deadline: float) -> GpusFound:
    if status.state is PartState.IDLE:
        return GpusFound(notes=(f"no GPU is looked at: {status.message}",))
    inventory = source.inventory
    rest = max(0.0, deadline - asyncio.get_running_loop().time())
    answer = await source.query([gpu.uuid for gpu in inventory.gpus], timeout=rest)
    return GpusFound(
        findings=tuple(findings),
        inventory=inventory,
        answers=_by_uuid(answer),
        unseen=tuple(_unseen(status, inventory, answer)),
    )


def _not_shown(inventory: Inventory, sysfs: Path) -> Iterator[Unseen]:
    """A GPU that the driver could not start, or that this container was not given, is in no list of NVML's."""
    shown, on_bus = len(inventory.gpus), presence.gpus_on_bus(sysfs)
    if shown < on_bus:
        mend = "look for NVRM in the kernel log; a container must be given all GPUs (NVIDIA_VISIBLE_DEVICES=all)"
        yield Unseen(PART, f"NVML shows {shown} of the {on_bus} NVIDIA GPUs on the PCI bus", mend)


def _by_uuid(answer: DevicesAnswer | Unknown) -> Mapping[GpuUuid, DeviceAnswer]:
    devices = answer.devices if isinstance(answer, DevicesAnswer) else ()
    return MappingProxyType({each.uuid: each for each in devices})


def _unseen(status: PartStatus, inventory: Inventory, answer: DevicesAnswer | Unknown) -> Iterator[Unseen]:
    if status.state is PartState.DEGRADED:
        yield Unseen(PART, status.message, status.mend)
    elif isinstance(answer, Unknown):
        yield Unseen(PART, answer.reason, _LOOK_CLOSER)
    elif not inventory.complete:
        yield Unseen(PART, "NVML lists a GPU that it cannot identify", _LOOK_CLOSER)
