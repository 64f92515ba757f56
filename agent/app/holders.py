"""Who holds which GPU, by UUID: kubelet's answer and NVML's inventory put together."""

from agent.model.workloads import Allocations
from agent.podresources import answers
from agent.podresources.client import AllocationCache
from agent.sources.nvml.driver import Driver


class GpuHolders:
    """Kubelet's allocations with indices, device nodes and DRA claims resolved to the UUIDs that faults name."""

    def __init__(self, *, cache: AllocationCache, driver: Driver) -> None:
        self._cache = cache
        self._driver = driver

    async def current(self, *, max_age: float) -> Allocations:
        """Return allocations that are at most that many seconds old; ``known`` False when kubelet cannot be asked."""
        return answers.resolve(await self._cache.current(max_age=max_age), inventory=self._driver.inventory)
