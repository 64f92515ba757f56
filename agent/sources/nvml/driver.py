"""The driver as the engine uses it: its GPUs, whether they answer, and the driver's recovery action."""

from collections.abc import Iterable, Mapping

from kubemend.agent.model.devices import DeviceId, DeviceInventory, Load
from kubemend.agent.restart.device_release import DeviceUse, ProcessUse
from kubemend.agent.sources.nvml.protocol import Condition, DevicesAnswer
from kubemend.agent.sources.nvml.source import NvmlSource


class Driver:
    """Queries NVML through its worker. None means that NVML could not be queried, for any reason."""

    def __init__(self, source: NvmlSource) -> None:
        self._source = source

    @property
    def inventory(self) -> DeviceInventory:
        """The GPUs of the node, as NVML last listed them."""
        return self._source.inventory

    def loads(self) -> Mapping[DeviceId, Load]:
        """Return the load of each GPU, from the latest poll."""
        return self._source.loads()

    async def answering(self, uuids: Iterable[DeviceId], *, timeout: float) -> frozenset[DeviceId] | None:
        """Return the devices that answer now; None when NVML did not answer within ``timeout`` seconds."""
        answer = await self._source.query(sorted(uuids), timeout=timeout)
        if not isinstance(answer, DevicesAnswer):
            return None
        return frozenset(device.uuid for device in answer.devices if device.condition is Condition.ANSWERS)

    async def uses(self, uuids: Iterable[DeviceId], *, timeout: float) -> Mapping[DeviceId, DeviceUse] | None:
        """Return the processes on each device, and its memory in use.

        A device that does not answer is omitted; None when NVML did not answer within ``timeout`` seconds.
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

    async def recovery_action(self, uuid: DeviceId, *, timeout: float) -> int | None:
        """Return the driver's recovery action (NVML field 230); None where the driver has none (before R570)."""
        answer = await self._source.query([uuid], timeout=timeout)
        if not isinstance(answer, DevicesAnswer):
            return None
        return next((device.recovery_action for device in answer.devices), None)
