"""All device sources: the driver, the kernel log and the NICs, each with its persisted state; the NICs near a GPU."""

import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from kubemend.agent.app.persisted_state import SourceState, StoredCursor, watched_since
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.faults.finding_queue import FindingQueue
from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.gpu import gpu_inventory_state
from kubemend.agent.health.nic import nic_inventory_state, pairing
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.devices import DeviceInventory, PciAddress
from kubemend.agent.model.findings import Finding
from kubemend.agent.model.nics import NicInventory, PciPlace
from kubemend.agent.settings import Settings
from kubemend.agent.sources.kernel_log import KernelLogSource
from kubemend.agent.sources.network.source import NetworkSource
from kubemend.agent.sources.nvml import detection
from kubemend.agent.sources.nvml.driver import Driver
from kubemend.agent.sources.nvml.source import NvmlSource, Periods
from kubemend.common.components import ComponentRegistry


class NicAffinity:
    """Pairs GPUs with NICs, and again when one of the two inventories has changed."""

    def __init__(
        self,
        *,
        gpus: Callable[[], DeviceInventory],
        nics: Callable[[], NicInventory],
        place: Callable[[PciAddress], PciPlace],
    ) -> None:
        self._gpus = gpus
        self._nics = nics
        self._place = place
        self._paired_for: tuple[frozenset[PciAddress], frozenset[PciAddress]] | None = None
        self._pairs: Mapping[PciAddress, tuple[PciAddress, ...]] = MappingProxyType({})

    def nics_for_gpus(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs near these GPUs."""
        inventory = self._gpus()
        pairs = self._up_to_date(inventory)
        gpus = [gpu for gpu in inventory.gpus if gpu.uuid in devices]
        return frozenset(str(nic) for gpu in gpus for nic in pairs.get(gpu.pci, ()))

    def nic_for_plugin_id(self, plugin_id: str) -> str | None:
        """Return the NIC that a device plugin allocates under that id, None where the id is not a NIC's PCI address."""
        try:
            pci = PciAddress.parse(plugin_id)
        except ValueError:
            return None
        nic = self._nics().by_pci(pci)  # also for a virtual function: its health is that of the NIC
        return str(nic.pci) if nic is not None else None

    def is_there(self, device: str) -> bool | None:
        """Return True if a NIC of that name is present; None for other devices and for NICs that were never seen."""
        nics = self._nics()
        try:
            pci = PciAddress.parse(device)
        except ValueError:
            return None
        return True if nics.complete and nics.by_pci(pci) is not None else None

    def _up_to_date(self, inventory: DeviceInventory) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
        nics = {nic.pci: nic.place for nic in self._nics().nics}
        gpus = frozenset(gpu.pci for gpu in inventory.gpus)
        if self._paired_for != (gpus, frozenset(nics)):
            self._pairs = pairing.pairs({pci: self._place(pci) for pci in gpus}, nics)
            self._paired_for = gpus, frozenset(nics)
        return self._pairs


class UnlistedGpus:
    """The GPUs to which NVIDIA's driver is bound and that NVML does not list: it could not start them.

    Or they were added since, and only another nvmlInit shows them. Nothing is known about their health, and a node with
    one must not seem healthy. Read again when NVML lists others, and every ``period`` seconds of ``clock``.
    """

    def __init__(
        self,
        *,
        inventory: Callable[[], DeviceInventory],
        on_bus: Callable[[], Collection[PciAddress]],
        clock: Callable[[], float] = time.monotonic,
        period: float = 30.0,
    ) -> None:
        self._inventory = inventory
        self._on_bus = on_bus
        self._clock = clock
        self._period = period
        self._read_again = 0.0
        self._compared: DeviceInventory | None = None
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Return their PCI addresses, as verdicts have them; none while NVML does not answer for all that it lists."""
        inventory, now = self._inventory(), self._clock()
        if inventory is not self._compared or now >= self._read_again:
            self._compared, self._read_again = inventory, now + self._period
            listed = {gpu.pci for gpu in inventory.gpus}
            unlisted = set(self._on_bus()) - listed if inventory.complete else ()
            self._names = sorted(map(str, unlisted))
        return self._names


_GPUS, _NICS = "gpus", "nics"


@dataclass(frozen=True, slots=True)
class DeviceSources:
    """The sources, their state and the driver."""

    nvml: NvmlSource
    driver: Driver
    network: NetworkSource
    nearby: NicAffinity
    unlisted: UnlistedGpus
    kernel_log: KernelLogSource
    cursor: StoredCursor
    source_state: SourceState
    places_before: Mapping[str, str]
    """The PCI addresses of the GPUs that a previous agent has seen, on this boot or an earlier one, by UUID."""

    @classmethod
    async def of(
        cls,
        settings: Settings,
        *,
        boot_id: str,
        catalog: Catalog,
        store: Store,
        metrics: Metrics,
        parts: ComponentRegistry,
        queue: FindingQueue,
    ) -> Self:
        """Create all sources. Raises JournalError when the state saved by a previous agent cannot be read."""
        source_state = SourceState(store)
        try:
            stored = await source_state.load(_GPUS)
            gpus, places = gpu_inventory_state.decode(stored, boot_id=boot_id), gpu_inventory_state.places(stored)
            nics = nic_inventory_state.decode(await source_state.load(_NICS), boot_id=boot_id)
        except ValueError as error:
            raise JournalError(f"the stored device inventory cannot be read: {error}; remove the state file") from error
        unlisted = UnlistedGpus(
            inventory=lambda: nvml.inventory,
            on_bus=lambda: detection.gpus_of_driver(settings.sysfs, proc=settings.proc),
        )
        nvml = NvmlSource(
            emit=queue.submit,
            classify=catalog.classify,
            report=parts.reporter("nvml"),
            periods=Periods(poll_period=settings.nvml_poll_interval),
            known_before=gpus,
            on_inventory=lambda known: source_state.keep(_GPUS, gpu_inventory_state.encode(known, boot_id=boot_id)),
            sysfs=settings.sysfs,
            unlisted=unlisted.names,
            limits=catalog.limits.gpu,
        )
        network = NetworkSource(
            emit=queue.submit,
            classify=catalog.classify,
            report=parts.reporter("network"),
            meter=_NetworkMeter(metrics),
            known_before=nics,
            remember=lambda memory: source_state.keep(_NICS, nic_inventory_state.encode(memory)),
            sysfs=settings.sysfs,
            netns=settings.network_namespace,
            ignored=frozenset(settings.ignore_nics),
            unasked=frozenset(settings.nic_no_probes),
            limits=catalog.limits.nic,
        )

        def from_log(finding: Finding) -> None:
            queue.submit(finding)
            nvml.note_log(finding)

        cursor = StoredCursor(store=store, may_forget=queue.idle)
        kernel_log = KernelLogSource(
            settings.kernel_log,
            boot_id=boot_id,
            watched_since=await watched_since(store, boot_id=boot_id),
            catalog=catalog,
            emit=from_log,
            drained=queue.drained,
            report=parts.reporter("kernel-log"),
            sysfs=settings.sysfs,
            cursors=cursor,
            meter=_KernelLogMeter(metrics),
        )
        driver = Driver(nvml)
        nearby = NicAffinity(gpus=lambda: driver.inventory, nics=lambda: network.inventory, place=network.place)
        return cls(nvml, driver, network, nearby, unlisted, kernel_log, cursor, source_state, places)

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that must run indefinitely, by name."""
        return {
            "nvml": self.nvml.run(),
            "network": self.network.run(),
            "kernel-log": self.kernel_log.run(),
            "cursor": self.cursor.run(),
            "source-state": self.source_state.run(),
        }

    def other_names(self) -> list[str]:
        """Return the names of the node's NICs, and of GPUs that NVML does not list, as verdicts have them."""
        return [*(str(nic.pci) for nic in self.network.inventory.nics), *self.unlisted.names()]

    def forget(self, device: str) -> None:
        """Forget a device: an operator has declared that it need not come back."""
        self.nvml.forget(device)
        self.network.forget(device)

    async def remember(self) -> None:
        """Save the state for the next agent."""
        await self.cursor.write()
        await self.source_state.write()


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
