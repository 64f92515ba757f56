"""Measure how long a restarted container takes to reattach to its devices. Informational; nothing blocks on it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import device_processes
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.device_release import DeviceUse
from kubemend.agent.restart.intents import Strategy
from kubemend.common import contained

log = structlog.get_logger(__name__)

ON_DEVICE_PHASE = "on_device"
"""The phase of ``kubemend_restart_phase_seconds`` from the end of a restart to the first process on a device."""

_DRIVER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Expected:
    restart: str
    strategy: Strategy
    devices: frozenset[DeviceId]
    containers: frozenset[ContainerId]
    since: float  # by the event loop's clock


class DeviceReattachTimer:
    """Find the new processes of restarted containers.

    Seconds: ``period`` between two queries, ``timeout`` before one restart is dropped.
    """

    def __init__(
        self,
        *,
        driver: device_processes.Driver,
        processes: ports.DeviceProcesses,
        metrics: Metrics,
        period: float = 0.5,
        timeout: float = 600.0,
    ) -> None:
        self._driver = driver
        self._processes = processes
        self._metrics = metrics
        self._period = period
        self._timeout = timeout
        self._expected: list[_Expected] = []
        self._some = asyncio.Event()

    def expect(
        self, restart: str, *, strategy: Strategy, devices: frozenset[DeviceId], containers: Iterable[ContainerId]
    ) -> None:
        """Start timing until one of these containers has a process on any of these devices."""
        now = asyncio.get_running_loop().time()
        self._expected.append(_Expected(restart, strategy, devices, frozenset(containers), since=now))
        self._some.set()

    async def run(self) -> None:
        """Query the driver periodically while restarts are timed."""
        while True:
            await self._some.wait()
            with contained.within(contained.Part.DEVICE, "those of restarted containers"):
                await self._check_expected()
            if not self._expected:
                self._some.clear()
            await asyncio.sleep(self._period)  # NVML has no event for a new process

    async def _check_expected(self) -> None:
        devices = frozenset[DeviceId]().union(*(each.devices for each in self._expected))
        uses = await self._driver.uses(devices, timeout=_DRIVER_SECONDS) or {}
        on_device = {device: self._containers(use) for device, use in uses.items()}
        now = asyncio.get_running_loop().time()
        for each in list(self._expected):
            took = now - each.since
            if any(each.containers & on_device.get(device, frozenset()) for device in each.devices):
                log.info("restart.on_device", restart=each.restart, milliseconds=round(took * 1000, 1))
                self._metrics.restart_phase.labels(each.strategy.value, ON_DEVICE_PHASE).observe(took)
                self._expected.remove(each)
            elif took >= self._timeout:
                log.info("restart.not_on_device", restart=each.restart, seconds=self._timeout)
                self._expected.remove(each)

    def _containers(self, use: DeviceUse) -> frozenset[ContainerId]:
        found: set[ContainerId] = set()
        for each in use.processes:
            with contained.within(contained.Part.DEVICE, f"pid {each.pid}"):
                process = device_processes.read_facts(self._processes, each.pid)
                if process is not None and process.container is not None:
                    found.add(process.container)
        return frozenset(found)
