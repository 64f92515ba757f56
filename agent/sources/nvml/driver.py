"""The driver as the engine sees it: what is there, does it answer, what does it say of itself."""

from collections.abc import Iterable, Mapping

from agent.model.devices import GpuUuid, Inventory
from agent.model.loads import Load
from agent.restart.gates import DeviceUse, ProcessUse
from agent.sources.nvml.protocol import Condition, DevicesAnswer
from agent.sources.nvml.source import NvmlSource


class Driver:
    """Asks NVML through its worker. None is "could not be asked", whatever the cause."""

    def __init__(self, source: NvmlSource) -> None:
        self._source = source

    @property
    def inventory(self) -> Inventory:
        """The GPUs of the node, as NVML last showed them."""
        return self._source.inventory

    def loads(self) -> Mapping[GpuUuid, Load]:
        """Return how hard each GPU works, by the latest poll."""
        return self._source.loads()

    async def answering(self, uuids: Iterable[GpuUuid], *, timeout: float) -> frozenset[GpuUuid] | None:
        """Return which of the devices answer now; None when NVML did not say within ``timeout`` seconds."""
        answer = await self._source.query(sorted(uuids), timeout=timeout)
        if not isinstance(answer, DevicesAnswer):
            return None
        return frozenset(device.uuid for device in answer.devices if device.condition is Condition.ANSWERS)

    async def uses(self, uuids: Iterable[GpuUuid], *, timeout: float) -> Mapping[GpuUuid, DeviceUse] | None:
        """Return who is on each of the devices, and how much memory is in use.

        A device that does not say is left out; None when NVML did not answer within ``timeout`` seconds.
        """
        answer = await self._source.query(sorted(uuids), timeout=timeout)
        if not isinstance(answer, DevicesAnswer):
            return None
        return {
            device.uuid: DeviceUse(
                processes=tuple(ProcessUse(each.pid, each.used) for each in device.processes),
                memory_used=device.memory_used,
            )
            for device in answer.devices
            if device.processes is not None
        }

    async def recovery_action(self, uuid: GpuUuid, *, timeout: float) -> int | None:
        """Return the driver's recovery action (NVML field 230); None where it does not say (before R570)."""
        answer = await self._source.query([uuid], timeout=timeout)
        if not isinstance(answer, DevicesAnswer):
            return None
        return next((device.recovery_action for device in answer.devices), None)
