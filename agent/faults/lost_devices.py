"""Report lost devices to the gangs of the containers that hold them, because the programs may hang there.

A program on a GPU that has fallen off the bus gets an error or waits: NCCL for ten minutes and more, and the gang with
it. No restart on this node fixes that, so none is started here. A gang's round recreates the member elsewhere. For
other pods the condition DeviceFailure shows that they must move.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.faults.app_faults import AppFaultHandler
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.state import evidence
from kubemend.agent.health.state.fold import ActiveFault
from kubemend.agent.model.devices import locator
from kubemend.agent.model.findings import Finding
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerSummary
from kubemend.agent.restart import admission
from kubemend.common import contained
from kubemend.common.coordination import FaultAnswer

log = structlog.get_logger(__name__)

ReportLost = Callable[[ContainerRef, admission.Cause], Awaitable[FaultAnswer]]
"""Reports a lost device's container to the hub, for as long as that takes."""


class LostDevices:
    """Report each container once, however many sources and log lines report its device."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        catalog: Catalog,
        faults: AppFaultHandler,
        devices: ports.Devices,
        report_to_hub: ReportLost,
        settle: float = 0.05,
    ) -> None:
        """``settle``: seconds in which the root cause of the finding may still arrive; it gives the code."""
        self._verdict_store = verdict_store
        self._catalog = catalog
        self._faults = faults
        self._devices = devices
        self._report_to_hub = report_to_hub
        self._settle = settle
        self._reported: dict[ContainerId, str] = {}
        self._under_way: dict[str, set[asyncio.Task[None]]] = {}

    def is_one(self, finding: Finding) -> bool:
        """Return whether a finding reports its device as lost now.

        A finding that predates the agent does not count: ``found`` reports a previous agent's when this one starts.
        """
        predates_agent = evidence.LOOK_BACK in finding.evidence or self._verdict_store.was_folded(finding)
        return not predates_agent and self._catalog.ends_programs(FaultKey(finding.kind, finding.code))

    def found(self, device: str, tasks: asyncio.TaskGroup, *, earlier: bool = False) -> None:
        """Report all containers on a lost device; never blocks.

        ``earlier``: a previous agent found the device lost. One that answers by now does not count as lost.
        """
        if self._loss(device) is None:
            return
        task = tasks.create_task(self._report_all(device, earlier=earlier), name=f"{device} is lost")
        under_way = self._under_way.setdefault(device, set())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def clear_recovered(self) -> None:
        """Cancel the reports of devices that are no longer lost."""
        for device in [each for each in self._under_way if self._loss(each) is None]:
            for task in self._under_way.pop(device):
                task.cancel()
            self._reported = {container: where for container, where in self._reported.items() if where != device}

    async def _report_all(self, device: str, *, earlier: bool) -> None:
        with contained.within(contained.Part.FAULT, device):
            await self._report_holders(device, earlier=earlier)

    async def _report_holders(self, device: str, *, earlier: bool) -> None:
        await asyncio.sleep(self._settle)
        if (loss := self._loss(device)) is None:
            return
        hit = await self._faults.holders_at(device, at=loss.last_seen)
        if earlier and self._answers(device):
            return
        async with asyncio.TaskGroup() as tasks:
            for container in hit:
                if container.id not in self._reported:
                    self._reported[container.id] = device
                    tasks.create_task(self._report(container, loss, device), name=f"{container.ref} on {device}")

    async def _report(self, container: ContainerSummary, loss: ActiveFault, device: str) -> None:
        cause = admission.Cause(
            code=loss.reason,
            message=f"{loss.title} on {device}: programs cannot continue on it",
            happened_at=loss.last_seen,
            action=self._verdict_store.worst_action({device}, inventory=self._devices.inventory),
            device=device,
        )
        with contained.within(contained.Part.FAULT, container.ref):
            taken = await self._report_to_hub(container.ref, cause)
            log.info("device.lost", container=str(container.ref), device=device, cause=cause.code, taken=taken.value)

    def _loss(self, device: str) -> ActiveFault | None:
        """Return the active fault that makes a device lost: the cause, not its effects. None if there is none."""
        losses = [
            active_fault
            for active_fault in self._verdict_store.active_faults(device)
            if self._catalog.ends_programs(active_fault.key)
        ]
        effects = [one for one in losses if any(self._catalog.is_side_effect(other, one) for other in losses)]
        return next((active_fault for active_fault in losses if active_fault not in effects), None)

    def _answers(self, device: str) -> bool:
        inventory = self._devices.inventory
        gpu = inventory.locate(locator(device))
        return gpu is not None and inventory.answers(gpu.uuid) is True
