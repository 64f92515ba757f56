"""How the devices of a member are, for the controller: a member on a broken one cannot be restarted in place."""

import asyncio
from typing import Final

from agent.coordination import ports
from agent.engine import ports as engine
from agent.engine.ledger import HealthLedger, gpu_keys
from agent.model.actions import ActionClass
from agent.model.workloads import ContainerRef
from agent.podresources import answers

_PATIENCE: Final = 0.25  # seconds; a fault must not wait for a kubelet that hangs
_MAX_AGE: Final = 1.0  # seconds; an older answer may not know a young container's devices, and so take it for well


class Verdicts:
    """Asks who holds what, and the ledger."""

    def __init__(self, *, ledger: HealthLedger, devices: engine.Devices, holders: ports.Holders) -> None:
        self._ledger = ledger
        self._devices = devices
        self._holders = holders

    async def worst(self, target: ContainerRef) -> ActionClass:
        """Return the gravest action that a device of the container needs.

        Where kubelet does not say which it holds: ASK_DRIVER, unless nothing grave is held against any.
        """
        inventory = self._devices.inventory
        try:
            async with asyncio.timeout(_PATIENCE):
                held = answers.held_by(target, await self._holders.current(max_age=_MAX_AGE))
        except TimeoutError:
            held = None
        if held is not None:
            return self._ledger.worst_action(gpu_keys(held, inventory=inventory), inventory=inventory)
        worst = self._ledger.worst_action(self._ledger.devices(), inventory=inventory)
        return worst if worst.leaves_device_usable else ActionClass.ASK_DRIVER
