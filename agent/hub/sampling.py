"""Sample the utilization of members' devices every few seconds, so that the controller finds stragglers."""

from typing import Final

from kubemend.agent import ports
from kubemend.agent.hub.outbox import Loads, Outbox
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.model.workloads import PodUid
from kubemend.common import aio, contained

PERIOD: Final = 5.0
"""Seconds between two samples."""
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
