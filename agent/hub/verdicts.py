"""Report the health of a member's devices to the controller, as a member on a broken one cannot restart in place."""

import asyncio
from typing import Final

from kubemend.agent import ports
from kubemend.agent import ports as engine
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import ContainerRef

_PATIENCE: Final = 0.25  # seconds; a fault must not wait for a kubelet that hangs
_MAX_AGE: Final = 1.0  # seconds; an older answer may lack a new container's devices, and so take them for healthy


class Verdicts:
    """Look up a container's devices, and their verdicts."""

    def __init__(self, *, ledger: VerdictStore, devices: engine.Devices, holders: ports.Holders) -> None:
        self._ledger = ledger
        self._devices = devices
        self._holders = holders

    async def worst(self, target: ContainerRef) -> ActionClass:
        """Return the most severe action that the container's devices need.

        If kubelet does not report its devices: ASK_DRIVER, unless every device on the node is usable.
        """
        inventory = self._devices.inventory
        try:
            async with asyncio.timeout(_PATIENCE):
                held = convert.held_by(target, await self._holders.current(max_age=_MAX_AGE))
        except TimeoutError:
            held = None
        if held is not None:
            return self._ledger.worst_action(gpu_keys(held, inventory=inventory), inventory=inventory)
        worst = self._ledger.worst_action(self._ledger.devices(), inventory=inventory)
        return worst if worst.leaves_device_usable else ActionClass.ASK_DRIVER
