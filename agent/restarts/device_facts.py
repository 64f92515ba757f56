"""Which devices a pod's containers hold, and how these are."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from kubemend.agent import ports
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import Allocations, ContainerRef, PodRef
from kubemend.common import aio


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Device allocations and device health."""

    holders: ports.Holders
    ledger: VerdictStore
    devices: ports.Devices

    async def held(self, pod: PodRef, names: Iterable[str], *, timeout: float) -> frozenset[DeviceId] | None:
        """Return the devices that these containers hold; None if kubelet does not tell in ``timeout`` seconds."""
        allocations = Allocations()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                backoff = aio.Backoff(first=0.02, limit=0.5)
                while not (allocations := await self.holders.current(max_age=1.0)).known:
                    await backoff.wait()
        parts = [convert.held_by(ContainerRef(pod, name), allocations) for name in names]
        known = [part for part in parts if part is not None]
        return frozenset[DeviceId]().union(*known) if len(known) == len(parts) else None

    async def until_listed(self, devices: frozenset[DeviceId], *, timeout: float) -> None:
        """Wait until the driver lists these devices, at most ``timeout`` seconds, because the agent may just start."""
        backoff = aio.Backoff(first=0.02, limit=0.1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (inventory := self.devices.inventory).complete or not all(map(inventory.by_id, devices)):
                    await backoff.wait()

    def action(self, devices: frozenset[DeviceId]) -> ActionClass:
        """Return the most severe action that any of the devices needs now."""
        inventory = self.devices.inventory
        return self.ledger.worst_action(gpu_keys(devices, inventory=inventory), inventory=inventory)
