"""Devices: their names in the kernel, the driver and Kubernetes, and the node's inventory of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NewType, Self

DeviceId = NewType("DeviceId", str)
"""The id under which a vendor's library and device plugin name a device. NVIDIA: a UUID, ``GPU-…`` or ``MIG-…``."""

_PCI = re.compile(
    r"(?:PCI:)?(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, order=True, slots=True)
class PciAddress:
    """A PCI function. NVML writes 8 domain digits, the kernel 4, an Xid line leaves the function out (then 0)."""

    domain: int
    bus: int
    device: int
    function: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``0000:41:00.0``, ``00000000:41:00.0``, ``PCI:0000:41:00`` in either case.

        Raises ValueError when the text is not a PCI address.
        """
        match = _PCI.fullmatch(text)
        if match is None:
            raise ValueError(f"not a PCI address: {text!r}")
        return cls(
            domain=int(match["domain"], 16),
            bus=int(match["bus"], 16),
            device=int(match["device"], 16),
            function=int(match["function"] or "0"),
        )

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


@dataclass(frozen=True, slots=True)
class DevicePartition:
    """A part of a GPU that is allocated by itself (NVIDIA: a MIG device), by the ids in events and log lines."""

    uuid: DeviceId
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that its vendor's library has listed since boot."""

    uuid: DeviceId
    pci: PciAddress
    index: int
    minor: int | None = None
    name: str = ""
    partitions: tuple[DevicePartition, ...] = ()

    @property
    def remembered(self) -> bool:
        """Whether only a previous agent has listed it. Then it has no index, and its partitions are unknown."""
        return self.index < 0


@dataclass(frozen=True, slots=True)
class DeviceLocator:
    """The place of a finding, as its source gives it. ``None``: the source does not give it."""

    pci: PciAddress | None = None
    uuid: DeviceId | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def __str__(self) -> str:
        parts = [str(part) for part in (self.uuid, self.pci) if part is not None]
        if self.gpu_instance is not None:
            parts.append(f"GI {self.gpu_instance}")
        if self.compute_instance is not None:
            parts.append(f"CI {self.compute_instance}")
        return " ".join(parts) or "unknown device"


@dataclass(frozen=True, slots=True)
class DeviceInventory:
    """The GPUs of the node.

    ``complete`` is False while the vendor's library does not answer: absence then proves nothing. ``partial``: it
    answers, but not for all GPUs, and which do not cannot be determined. ``silent`` are the GPUs that did not answer
    the last query, or are not initialized yet: their current state is unknown.
    """

    gpus: tuple[Gpu, ...] = ()
    complete: bool = False
    partial: bool = False
    silent: frozenset[DeviceId] = frozenset()
    _by_pci: dict[PciAddress, Gpu] = field(init=False, repr=False, compare=False)
    _by_id: dict[DeviceId, Gpu] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_pci", {gpu.pci: gpu for gpu in self.gpus})
        object.__setattr__(self, "_by_id", dict(self._ids()))

    def _ids(self) -> Iterator[tuple[DeviceId, Gpu]]:
        for gpu in self.gpus:
            yield gpu.uuid, gpu
            yield from ((instance.uuid, gpu) for instance in gpu.partitions)

    def by_index(self) -> dict[int, Gpu]:
        """Return the GPUs by their NVML index; none if it is unknown of which GPU an index is.

        Another nvmlInit numbers the GPUs that are left again. A lost one keeps the index that it had, or is one of an
        earlier agent without any.
        """
        return _numbered(self.gpus, lambda gpu: gpu.index) if not any(gpu.remembered for gpu in self.gpus) else {}

    def by_minor(self) -> dict[int, Gpu]:
        """Return the GPUs by the minor number of their device file; none if two have the same."""
        return _numbered(self.gpus, lambda gpu: gpu.minor)

    def by_id(self, uuid: DeviceId) -> Gpu | None:
        """Return the GPU with that id, or the GPU that a partition with that id belongs to."""
        return self._by_id.get(uuid)

    def answers(self, uuid: str) -> bool | None:
        """Return whether the GPU with that UUID answers now; None while the vendor's library does not answer."""
        if not self.complete and not self.partial:
            return None
        return uuid not in self.silent and any(gpu.uuid == uuid and not gpu.remembered for gpu in self.gpus)

    def locate(self, where: DeviceLocator) -> Gpu | None:
        """Return the GPU that a finding concerns, or None when it is not in the inventory."""
        if where.uuid is not None and (gpu := self._by_id.get(where.uuid)) is not None:
            return gpu
        return self._by_pci.get(where.pci) if where.pci is not None else None

    def allocatable_ids(self, where: DeviceLocator) -> frozenset[DeviceId] | None:
        """Return every id under which a container may hold the located device; None if that is an unknown partition.

        A finding on a partition concerns that partition alone, also before the driver has listed a new one. One on the
        whole GPU concerns the GPU and all its partitions (other tools lose whole-GPU faults on MIG GPUs:
        research/health.md, defects 3 and 4).
        """
        gpu = self.locate(where)
        if gpu is None:
            return frozenset({where.uuid} if where.uuid is not None else ())
        instances = [
            instance
            for instance in gpu.partitions
            if where.uuid == instance.uuid
            or (
                where.gpu_instance == instance.gpu_instance
                and where.compute_instance in (None, instance.compute_instance)
            )
        ]
        if instances or where.gpu_instance is not None:
            return frozenset(instance.uuid for instance in instances) or None
        return frozenset((gpu.uuid, *(instance.uuid for instance in gpu.partitions)))


def _numbered(gpus: Sequence[Gpu], number: Callable[[Gpu], int | None]) -> dict[int, Gpu]:
    """Return the GPUs by a number; none if two have the same, because then others may have moved, too."""
    known = [(each, gpu) for gpu in gpus if (each := number(gpu)) is not None]
    found = dict(known)
    return found if len(found) == len(known) else {}


def device_key(where: DeviceLocator, *, inventory: DeviceInventory) -> str:
    """Return the name under which a device's health is stored: its GPU's UUID, else its PCI address."""
    gpu = inventory.locate(where)
    if gpu is not None:
        return gpu.uuid
    return str(where.uuid or where.pci or "unknown")


def locator(device: str) -> DeviceLocator:
    """Return the locator for a name made by ``device_key``."""
    try:
        return DeviceLocator(pci=PciAddress.parse(device))
    except ValueError:
        return DeviceLocator(uuid=DeviceId(device))


@dataclass(frozen=True, slots=True)
class Load:
    """One reading of one device; None means that the value is unavailable.

    ``utilization`` is the share of the last sample period in which anything ran, ``clock`` the clock as a share of the
    highest, ``power`` the power draw as a share of its limit (which it may exceed for moments).
    """

    utilization: float | None = None
    clock: float | None = None
    power: float | None = None
