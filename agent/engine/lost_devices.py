"""Devices that no program can go on with: the gangs of whoever is on one are told, for the program may hang there.

What uses a GPU that has fallen off the bus gets an error, or waits: NCCL for ten minutes and more, and the gang with
it. No restart on this node mends that, so none is begun here: a gang's round recreates the member elsewhere, and of
others the condition DeviceFailure says that they must move.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from agent.engine import ports
from agent.engine.faults import AppFaults
from agent.engine.ledger import HealthLedger
from agent.health import evidence
from agent.health.catalog import Catalog, FaultKey
from agent.health.fold import Latch
from agent.model.devices import locator
from agent.model.findings import Finding
from agent.model.rounds import Taken
from agent.model.workloads import ContainerId, ContainerRef, ContainerView
from agent.restart import admission
from common import contained

log = structlog.get_logger(__name__)

Tell = Callable[[ContainerRef, admission.Cause], Awaitable[Taken]]
"""Tells whoever restarts gangs of a container whose device is lost, for as long as it takes."""


class LostDevices:
    """Tells of each container once, however many sources and lines tell of its device."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        catalog: Catalog,
        faults: AppFaults,
        devices: ports.Devices,
        tell: Tell,
        settle: float = 0.05,
    ) -> None:
        """``settle``: for how many seconds the cause of what was seen may still come in; it gives the code."""
        self._ledger = ledger
        self._catalog = catalog
        self._faults = faults
        self._devices = devices
        self._tell = tell
        self._settle = settle
        self._told: dict[ContainerId, str] = {}
        self._under_way: dict[str, set[asyncio.Task[None]]] = {}

    def is_one(self, finding: Finding) -> bool:
        """Whether a finding says that its device is lost now. What was before our time is no ground to act."""
        of_old = evidence.LOOK_BACK in finding.evidence
        return not of_old and self._catalog.ends_programs(FaultKey(finding.kind, finding.code))

    def found(self, device: str, tasks: asyncio.TaskGroup, *, earlier: bool = False) -> None:
        """Tell of all who are on a device that is lost; never blocks.

        ``earlier``: an agent before this one has found it so. One that answers by now is not taken for lost.
        """
        if self._loss(device) is None:
            return
        task = tasks.create_task(self._tell_of_all(device, earlier=earlier), name=f"{device} is lost")
        under_way = self._under_way.setdefault(device, set())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def leave_those_back(self) -> None:
        """Tell no more of devices against which nothing of that sort is held any more."""
        for device in [each for each in self._under_way if self._loss(each) is None]:
            for task in self._under_way.pop(device):
                task.cancel()
            self._told = {container: where for container, where in self._told.items() if where != device}

    async def _tell_of_all(self, device: str, *, earlier: bool) -> None:
        with contained.within(contained.Part.FAULT, device):
            await self._tell_who_is_hit(device, earlier=earlier)

    async def _tell_who_is_hit(self, device: str, *, earlier: bool) -> None:
        await asyncio.sleep(self._settle)
        if (loss := self._loss(device)) is None:
            return
        hit = await self._faults.hit(device, at=loss.last_seen)
        if earlier and self._answers(device):
            return
        async with asyncio.TaskGroup() as tasks:
            for container in hit:
                if container.id not in self._told:
                    self._told[container.id] = device
                    tasks.create_task(self._tell_of(container, loss, device), name=f"{container.ref} on {device}")

    async def _tell_of(self, container: ContainerView, loss: Latch, device: str) -> None:
        cause = admission.Cause(
            code=loss.reason,
            message=f"{loss.title} on {device}: no program can go on with it",
            happened_at=loss.last_seen,
            action=self._ledger.worst_action({device}, inventory=self._devices.inventory),
            device=device,
        )
        with contained.within(contained.Part.FAULT, container.ref):
            taken = await self._tell(container.ref, cause)
            log.info("device.lost", container=str(container.ref), device=device, cause=cause.code, taken=taken.value)

    def _loss(self, device: str) -> Latch | None:
        """Return what says that a device is lost, a cause rather than its effects; None when nothing does."""
        losses = [latch for latch in self._ledger.latches(device) if self._catalog.ends_programs(latch.key)]
        effects = [one for one in losses if any(self._catalog.swallows(other, one) for other in losses)]
        return next((latch for latch in losses if latch not in effects), None)

    def _answers(self, device: str) -> bool:
        inventory = self._devices.inventory
        gpu = inventory.locate(locator(device))
        return inventory.complete and gpu is not None and not gpu.remembered and gpu.uuid not in inventory.silent
