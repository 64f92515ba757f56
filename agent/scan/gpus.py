"""Check the GPUs with the agent's own NVML worker: one poll, and one query per GPU."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.model.devices import DeviceId, DeviceInventory
from kubemend.agent.model.findings import Finding
from kubemend.agent.scan.report import GpusFound, Unseen
from kubemend.agent.sources.nvml import detection
from kubemend.agent.sources.nvml.protocol import DeviceAnswer, DevicesAnswer
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.agent.sources.nvml.source import NvmlSource, Periods
from kubemend.common.components import ComponentState, ComponentStatus

PART = "nvml"

_HANG_SHARE, _STOP_SHARE = 0.6, 0.15
"""Shares of the timeout: for one NVML call, and for the worker's end."""

_NVML_HINT = "run nvidia-smi on the machine and look for NVRM in its kernel log"
_SLOW = "nvmlInit takes seconds per GPU without persistence mode: enable it, or increase --timeout"


async def check(sysfs: Path, *, catalog: Catalog, timeout: float) -> GpusFound:
    """Check once. It takes ``timeout`` seconds at most; a worker that hangs in the driver is left to end by itself."""
    findings: list[Finding] = []
    reported: asyncio.Future[ComponentStatus] = asyncio.get_running_loop().create_future()

    def report(status: ComponentStatus) -> None:
        if not reported.done():  # the first status decides: a poll, or the problem
            reported.set_result(status)

    source = NvmlSource(
        emit=findings.append,
        classify=catalog.classify,
        report=report,
        periods=Periods(hang_deadline=_HANG_SHARE * timeout, stop_deadline=_STOP_SHARE * timeout),
        sysfs=sysfs,
        limits=replace(catalog.limits.gpu, fabric_wait=0.0),  # CUDA does not start on it now, however long it will take
        needs_events=False,
    )
    deadline = asyncio.get_running_loop().time() + (1 - _STOP_SHARE) * timeout
    async with _running(source) as running:
        try:
            async with asyncio.timeout_at(deadline):
                either: set[asyncio.Future[Any]] = {running, reported}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # it only ends by an error
                found = await _found(source, reported.result(), findings, deadline=deadline)
                return replace(found, unseen=found.unseen or tuple(_not_shown(found.inventory, sysfs)))
        except TimeoutError:
            what = f"NVML did not answer within {(1 - _STOP_SHARE) * timeout:g} s"
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


async def _found(source: NvmlSource, status: ComponentStatus, findings: list[Finding], *, deadline: float) -> GpusFound:
    if status.state is ComponentState.IDLE:
        return GpusFound(notes=(f"no GPU is checked: {status.message}",))
    inventory = source.inventory
    rest = max(0.0, deadline - asyncio.get_running_loop().time())
    answer = await source.query([gpu.uuid for gpu in inventory.gpus], timeout=rest)
    return GpusFound(
        findings=tuple(findings),
        inventory=inventory,
        answers=_by_uuid(answer),
        unseen=tuple(_unseen(status, inventory, answer)),
    )


def _not_shown(inventory: DeviceInventory, sysfs: Path) -> Iterator[Unseen]:
    """Yield a problem if GPUs are missing in NVML: the driver could not start them, or the container lacks them."""
    shown, on_bus = len(inventory.gpus), detection.gpus_on_bus(sysfs)
    if shown < on_bus:
        hint = "look for NVRM in the kernel log; a container must be given all GPUs (NVIDIA_VISIBLE_DEVICES=all)"
        yield Unseen(PART, f"NVML shows {shown} of the {on_bus} NVIDIA GPUs on the PCI bus", hint)


def _by_uuid(answer: DevicesAnswer | Unknown) -> Mapping[DeviceId, DeviceAnswer]:
    devices = answer.devices if isinstance(answer, DevicesAnswer) else ()
    return MappingProxyType({each.uuid: each for each in devices})


def _unseen(status: ComponentStatus, inventory: DeviceInventory, answer: DevicesAnswer | Unknown) -> Iterator[Unseen]:
    if status.state is ComponentState.DEGRADED:
        yield Unseen(PART, status.message, status.hint)
    elif isinstance(answer, Unknown):
        yield Unseen(PART, answer.reason, _NVML_HINT)
    elif not inventory.complete:
        yield Unseen(PART, "NVML lists a GPU that it cannot identify", _NVML_HINT)
