"""The containers that hold each GPU, by UUID: kubelet's allocations combined with NVML's inventory."""

from kubemend.agent.clients.podresources import convert
from kubemend.agent.clients.podresources.client import AllocationCache
from kubemend.agent.model.workloads import Allocations
from kubemend.agent.sources.nvml.driver import Driver


class GpuHolders:
    """Kubelet's allocations, with indices, device nodes and DRA claims resolved to the UUIDs in faults."""

    def __init__(self, *, cache: AllocationCache, driver: Driver) -> None:
        self._cache = cache
        self._driver = driver

    async def current(self, *, max_age: float) -> Allocations:
        """Return allocations at most ``max_age`` seconds old; ``known`` False when kubelet does not answer."""
        return convert.resolve(await self._cache.current(max_age=max_age), inventory=self._driver.inventory)
