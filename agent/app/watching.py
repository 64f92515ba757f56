"""Everything that watches devices: the driver, the kernel log and the NICs, each with what it knows from before."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from agent.app.cursor import StoredCursor, watched_since
from agent.app.memories import Memories
from agent.app.nearby import NearbyNics
from agent.engine.metrics import Metrics
from agent.health import gpu_memory, nic_memory
from agent.health.catalog import Catalog, FaultKey
from agent.history.store import HistoryError, Store
from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind
from agent.settings import Settings
from agent.sources.kernel_log import KernelLogSource
from agent.sources.network.source import NetworkSource
from agent.sources.nvml.driver import Driver
from agent.sources.nvml.source import NvmlSource, Periods
from common.parts import Parts, PartStatus

_GPUS, _NICS = "gpus", "nics"


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where the sources' words go.

    ``emit`` takes findings and ``idle`` says whether all of them have been acted on; ``devices_changed`` is called
    when a part that knows devices has changed, ``kernel_log_is`` when the kernel log can (not) be read any more.
    """

    emit: Callable[[Finding], None]
    idle: Callable[[], bool]
    devices_changed: Callable[[], None]
    kernel_log_is: Callable[[PartStatus], None]


@dataclass(frozen=True, slots=True)
class Watching:
    """The sources."""

    nvml: NvmlSource
    driver: Driver
    network: NetworkSource
    nearby: NearbyNics
    kernel_log: KernelLogSource
    cursor: StoredCursor
    memories: Memories

    @classmethod
    async def of(
        cls,
        settings: Settings,
        *,
        boot_id: str,
        catalog: Catalog,
        store: Store,
        metrics: Metrics,
        parts: Parts,
        outlets: Outlets,
    ) -> Self:
        """Make them all. Raises HistoryError when what an earlier agent has left cannot be read."""

        def classify(kind: FindingKind, code: str) -> ActionClass:
            return catalog.action(FaultKey(kind, code))

        memories = Memories(store)
        try:
            gpus = gpu_memory.decode(await memories.load(_GPUS), boot_id=boot_id)
            nics = nic_memory.decode(await memories.load(_NICS), boot_id=boot_id)
        except ValueError as error:
            raise HistoryError(f"what is kept of devices cannot be read: {error}; remove the state file") from error
        nvml = NvmlSource(
            emit=outlets.emit,
            classify=classify,
            report=parts.reporter("nvml", also=lambda _: outlets.devices_changed()),
            periods=Periods(poll_period=settings.nvml_poll_period),
            known_before=gpus,
            on_inventory=lambda known: memories.keep(_GPUS, gpu_memory.encode(known, boot_id=boot_id)),
            sysfs=settings.sysfs,
            limits=catalog.limits.gpu,
        )
        network = NetworkSource(
            emit=outlets.emit,
            classify=classify,
            report=parts.reporter("network", also=lambda _: outlets.devices_changed()),
            meter=_NetworkMeter(metrics),
            known_before=nics,
            remember=lambda memory: memories.keep(_NICS, nic_memory.encode(memory)),
            sysfs=settings.sysfs,
            netns=settings.network_namespace,
            ignored=frozenset(settings.ignored_nics),
            unasked=frozenset(settings.unasked_nics),
            limits=catalog.limits.nic,
        )
        cursor = StoredCursor(store=store, may_forget=outlets.idle)
        kernel_log = KernelLogSource(
            settings.kernel_log,
            boot_id=boot_id,
            watched_since=await watched_since(store, boot_id=boot_id),
            catalog=catalog,
            emit=outlets.emit,
            report=parts.reporter("kernel-log", also=outlets.kernel_log_is),
            sysfs=settings.sysfs,
            cursors=cursor,
            meter=_KernelLogMeter(metrics),
        )
        driver = Driver(nvml)
        nearby = NearbyNics(gpus=lambda: driver.inventory, nics=lambda: network.inventory, place=network.place)
        return cls(nvml, driver, network, nearby, kernel_log, cursor, memories)

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what must run for ever, by name."""
        return {
            "nvml": self.nvml.run(),
            "network": self.network.run(),
            "kernel-log": self.kernel_log.run(),
            "cursor": self.cursor.run(),
            "memories": self.memories.run(),
        }

    def forget(self, device: str) -> None:
        """A person has said that a device need not come back."""
        self.nvml.forget(device)
        self.network.forget(device)

    async def remember(self) -> None:
        """Write down what the next agent wants to know."""
        await self.cursor.write()
        await self.memories.write()


class _KernelLogMeter:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def read(self, count: int) -> None:
        self._metrics.kernel_log_read.inc(count)

    def lost(self, count: int) -> None:
        self._metrics.kernel_log_lost.inc(count)

    def malformed(self, count: int) -> None:
        self._metrics.kernel_log_malformed.inc(count)


class _NetworkMeter:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def overflowed(self, channel: str) -> None:
        self._metrics.netlink_overflows.labels(channel).inc()
