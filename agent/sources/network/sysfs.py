"""NICs in sysfs. All reads block, and those that query the device may block for long.

Paths: ``bus/pci/devices`` for the devices on the bus, ``net`` and ``infiniband`` below each function, and
``class/infiniband/DEVICE/ports/N`` (the kernel's Documentation/ABI/stable/sysfs-class-infiniband).
"""

import errno
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import structlog

from kubemend.agent.health.nic import rdma_errors
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.nics import LinkLayer, Nic, PciPlace, RdmaPort
from kubemend.common import kernel_files

T = TypeVar("T")

log = structlog.get_logger(__name__)

_NETWORK_CLASS = "0x02"
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_STATE = re.compile(r"(?P<number>\d+): (?P<name>\w+)")
_RATE = re.compile(r"(?P<gigabits>\d+(?:\.\d+)?) Gb/sec")
_ACTIVE = "ACTIVE"
_DISABLED = "Disabled"
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
LINK_DOWNED = "link_downed"
_COUNTERS = rdma_errors.COUNTERS | {LINK_DOWNED}
_PAUSE = 300.0
"""Seconds for which a device is not queried again for a value that it refused."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The devices on the bus.

    ``drivers`` has every network function, with "" where no driver is bound to it. A function that has a driver but is
    not listed as a NIC may have its netdev in a pod's network namespace.
    """

    nics: tuple[Nic, ...] = ()
    drivers: Mapping[PciAddress, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class PortState:
    """State of an RDMA port. ``disabled``: its physical link was disabled. ``serial`` belongs to its device."""

    name: str
    disabled: bool
    rate: int | None
    serial: int

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return self.name == _ACTIVE


class Sysfs:
    """Reads below one root."""

    def __init__(
        self, root: Path, *, unasked: frozenset[str] = frozenset(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the reader.

        The NICs that ``unasked`` names (PCI address, netdev or RDMA device) are not queried for ports, speed and
        counters: where the firmware forbids that, each read writes a line to the kernel log (``ACCESS_REG … failed``).
        """
        self._root = root
        self._unasked = unasked
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._classes: dict[str, tuple[int, bool]] = {}
        self.at: Path = root
        """The path that is being read, or was read last: the place where a read hangs."""

    def scan(self) -> Scan:
        """List the NICs. Raises OSError where they cannot be listed."""
        devices = self._root / "bus" / "pci" / "devices"
        names = self._functions(devices)
        self._classes = {name: kept for name, kept in self._classes.items() if name in names}
        nics: list[Nic] = []
        drivers: dict[PciAddress, str] = {}
        for name in sorted(names):
            if not self._is_network_function(devices / name):
                continue
            pci = PciAddress.parse(name)
            drivers[pci] = self._link_name(devices / name / "driver")
            nic = self._nic(devices / name, pci=pci, driver=drivers[pci])
            if nic.netdevs or nic.ports:
                nics.append(nic)
        self._functions(devices)  # raises if the whole bus is gone, rather than some functions of it
        return Scan(tuple(nics), MappingProxyType(drivers))

    def has_device(self, netdev: str) -> bool:
        """Return whether a netdev belongs to a device, as virtual ones do not. Queries no device: never blocks."""
        return (self._root / "class" / "net" / netdev / "device").exists()

    def place(self, pci: PciAddress) -> PciPlace:
        """Return the position of a PCI function, empty if it does not exist. Queries no device: never blocks."""
        device = self._root / "bus" / "pci" / "devices" / str(pci)
        parts = Path(os.path.realpath(device)).parts
        root = next((at for at, part in enumerate(parts) if _PCI_ROOT.fullmatch(part)), len(parts))
        node = _number(self._text(device / "numa_node"))
        return PciPlace(path=parts[root:], numa_node=node if node is not None and node >= 0 else None)

    def ports(self, nics: Iterable[Nic]) -> Mapping[RdmaPort, PortState]:
        """Return the state of each RDMA port; unreadable ports are omitted."""
        states = {port: self._query(port.name, functools.partial(self._port, port)) for port in self._ports(nics)}
        return {port: state for port, state in states.items() if state is not None}

    def speeds(self, nics: Iterable[Nic], *, up: frozenset[str]) -> Mapping[str, int]:
        """Return the speeds of the netdevs that are up, in Mb/s; unreadable ones are omitted."""
        names = [name for nic in self._queryable(nics) for name in nic.netdevs if name in up]
        speeds = {name: self._query(name, functools.partial(self._speed, name)) for name in names}
        return {name: speed for name, speed in speeds.items() if speed is not None and speed > 0}

    def counters(
        self, nics: Iterable[Nic], *, up: Mapping[RdmaPort, PortState]
    ) -> Mapping[RdmaPort, Mapping[str, int]]:
        """Return the error counters of the active ports; unreadable ones are omitted."""
        active = [port for port in self._ports(nics) if port in up and up[port].active]
        read = {port: self._query(f"{port.name} counters", functools.partial(self._counters, port)) for port in active}
        return {port: values for port, values in read.items() if values is not None}

    def _ports(self, nics: Iterable[Nic]) -> list[RdmaPort]:
        return [port for nic in self._queryable(nics) for port in nic.ports]

    def _queryable(self, nics: Iterable[Nic]) -> list[Nic]:
        return [nic for nic in nics if not nic.names & self._unasked]

    def _query(self, what: str, ask: Callable[[], T]) -> T | None:
        """Query a device for a value; None where it does not answer.

        A query that the device refuses is suspended for a while: it would fail each time, with a line in the kernel
        log.
        """
        now = self._clock()
        if now < self._refused.get(what, 0.0):
            return None
        try:
            return ask()
        except OSError as error:
            if error.errno not in _GONE:
                self._refused[what] = now + _PAUSE
                log.info("network.refused", what=what, path=str(self.at), error=error.strerror)
            return None

    def _functions(self, devices: Path) -> frozenset[str]:
        """Return the names of all PCI functions. Raises OSError if there are none: every machine has some."""
        if names := self._names(devices):
            return names
        raise OSError(errno.ENODATA, "no PCI devices found", str(devices))

    def _is_network_function(self, device: Path) -> bool:
        """Return whether it is a physical network function. Cached while the same directory exists."""
        try:
            inode = device.stat().st_ino
            kept = self._classes.get(device.name)
            if kept is None or kept[0] != inode:
                is_network = self._read(device / "class").startswith(_NETWORK_CLASS)
                kept = self._classes[device.name] = inode, is_network and not (device / "physfn").exists()
        except OSError as error:
            if error.errno in _GONE:  # it vanished after the listing
                return False
            raise
        return kept[1]

    def _nic(self, device: Path, *, pci: PciAddress, driver: str) -> Nic:
        ids = [self._text(device / part) for part in ("vendor", "device", "subsystem_vendor", "subsystem_device")]
        ports = [port for rdma in self._names(device / "infiniband") for port in self._rdma_ports(rdma)]
        return Nic(
            pci=pci,
            netdevs=tuple(sorted(self._netdevs(device))),
            ports=tuple(sorted(ports)),
            driver=driver,
            model=":".join((text or "").removeprefix("0x") for text in ids),
            place=self.place(pci),
            virtual_functions=tuple(sorted(self._virtual_functions(device))),
        )

    def _virtual_functions(self, device: Path) -> list[PciAddress]:
        links = [device / name for name in self._names(device) if name.startswith("virtfn")]
        return [PciAddress.parse(name) for name in map(self._link_name, links) if name]

    def _netdevs(self, device: Path) -> list[str]:
        """Return the netdevs of a function and of virtio devices on it, without those of virtual functions."""
        parents = [device, *(device / name for name in self._names(device) if name.startswith("virtio"))]
        return [
            name
            for parent in parents
            for name in self._names(parent / "net")
            if not _REPRESENTOR.fullmatch(self._text(parent / "net" / name / "phys_port_name") or "")
        ]

    def _rdma_ports(self, device: str) -> list[RdmaPort]:
        """Return the ports with a readable link layer: without it, whether a port should be up is unknown."""
        ports = self._root / "class" / "infiniband" / device / "ports"
        layers = {number: self._text(ports / number / "link_layer") for number in self._names(ports)}
        return [RdmaPort(device, int(number), _link_layer(layer)) for number, layer in layers.items() if layer]

    def _port(self, port: RdmaPort) -> PortState | None:
        device = self._root / "class" / "infiniband" / port.device
        directory = device / "ports" / str(port.number)
        state = _STATE.match(self._read(directory / "state"))
        if state is None:
            return None
        rate = _RATE.match(self._read(directory / "rate"))
        physical = self._read(directory / "phys_state")
        return PortState(
            name=state["name"],
            disabled=port.link_layer is LinkLayer.INFINIBAND and physical.endswith(_DISABLED),
            rate=round(float(rate["gigabits"]) * 1000) if rate is not None else None,
            serial=device.stat().st_ino,
        )

    def _speed(self, netdev: str) -> int | None:
        return _number(self._read(self._root / "class" / "net" / netdev / "speed"))

    def _counters(self, port: RdmaPort) -> Mapping[str, int]:
        directory = self._root / "class" / "infiniband" / port.device / "ports" / str(port.number)
        values = {
            name: _number(self._read(directory / group / name))
            for group in ("counters", "hw_counters")
            for name in _COUNTERS & self._names(directory / group)
        }
        return {name: value for name, value in values.items() if value is not None}

    def _names(self, directory: Path) -> frozenset[str]:
        """List a directory; a missing one is empty. Raises OSError for any other reason."""
        self.at = directory
        try:
            return frozenset(os.listdir(directory))  # noqa: PTH208 - only the names are needed
        except OSError as error:
            if error.errno in _GONE:
                return frozenset()
            raise

    def _read(self, path: Path) -> str:
        """Read one value. Raises OSError."""
        self.at = path
        if (text := kernel_files.read(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return text.strip()

    def _text(self, path: Path) -> str | None:
        """Read one value that does not query the device; None where it does not exist."""
        try:
            return self._read(path)
        except OSError:
            return None

    def _link_name(self, path: Path) -> str:
        """Return the name of a link's target, "" where there is none. Raises OSError for any other reason."""
        self.at = path
        try:
            return path.readlink().name
        except OSError as error:
            if error.errno in _GONE:
                return ""
            raise


def _link_layer(text: str) -> LinkLayer:
    try:
        return LinkLayer(text)
    except ValueError:
        return LinkLayer.UNSPECIFIED


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
