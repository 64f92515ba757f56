"""Report members' devices to the controller: their utilization, and the health of those of a failed member.

Utilization is sampled every few seconds, so that the controller finds stragglers. A member on a broken device cannot
restart in place.
"""

import asyncio
from typing import Final

from kubemend.agent import ports
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.hub.outbox import Loads, Outbox
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.model.workloads import ContainerRef, PodUid
from kubemend.common import aio, contained

PERIOD: Final = 10.0
"""Seconds between two samples: each costs the hub a tenth of a millisecond, and a member lags for two minutes before
that is reported."""
_HOLDERS_AGE: Final = 30.0  # seconds; kubelet is queried rarely, because a new member's first samples are useless


class Sampler:
    """Sample while there is a stream to the hub."""

    def __init__(
        self, *, pods: ports.Pods, holders: ports.Holders, loads: ports.Loads, outbox: Outbox, period: float = PERIOD
    ) -> None:
        self._pods = pods
        self._holders = holders
        self._loads = loads
        self._outbox = outbox
        self._period = period

    async def run(self) -> None:
        """Sample periodically."""
        async for _ in aio.ticks(period=self._period):
            with contained.within(contained.Part.MEMBER, "samples of all"):
                if self._outbox.is_open and (taken := await self._sample()):
                    self._outbox.samples(taken)

    async def _sample(self) -> Loads:
        """Return the devices' loads by member. The load of a GPU instance is unknown."""
        loads = self._loads.loads()
        if not loads:
            return {}
        held = await self._holders.current(max_age=_HOLDERS_AGE)
        found: dict[tuple[PodUid, DeviceId], Load] = {}
        for item in held.items:
            pod = self._pods.by_name(item.namespace, item.pod_name)
            if pod is not None and pod.gang is not None:
                found |= {(pod.ref.uid, uuid): loads[uuid] for uuid in item.devices & loads.keys()}
        return found


_TIMEOUT: Final = 0.25  # seconds; a fault must not wait for a kubelet that hangs
_MAX_AGE: Final = 1.0  # seconds; an older answer may lack a new container's devices, and so take them for healthy


class Verdicts:
    """Look up a container's devices, and their verdicts."""

    def __init__(self, *, verdict_store: VerdictStore, devices: ports.Devices, holders: ports.Holders) -> None:
        self._verdict_store = verdict_store
        self._devices = devices
        self._holders = holders

    async def worst(self, target: ContainerRef) -> ActionClass:
        """Return the most severe action that the container's devices need.

        If kubelet does not report its devices: ASK_DRIVER, unless every device on the node is usable.
        """
        inventory = self._devices.inventory
        try:
            async with asyncio.timeout(_TIMEOUT):
                held = convert.held_by(target, await self._holders.current(max_age=_MAX_AGE))
        except TimeoutError:
            held = None
        if held is not None:
            return self._verdict_store.worst_action(gpu_keys(held, inventory=inventory), inventory=inventory)
        worst = self._verdict_store.worst_action(self._verdict_store.devices(), inventory=inventory)
        return worst if worst.leaves_device_usable else ActionClass.ASK_DRIVER
