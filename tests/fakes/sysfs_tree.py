"""Provide a node's PCI bus, NICs and RDMA devices as files, in sysfs's layout: a test plugs and unbinds them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ACTIVE, DOWN, INIT = "4: ACTIVE", "1: DOWN", "2: INIT"
CONNECTX_7 = {"vendor": "0x15b3", "device": "0x1021", "subsystem_vendor": "0x15b3", "subsystem_device": "0x0041"}


@dataclass(frozen=True)
class FakePort:
    """One port of an RDMA device, in the kernel's own terms."""

    link_layer: str = "InfiniBand"
    state: str = ACTIVE
    phys_state: str = "5: LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    counters: Mapping[str, int] = field(default_factory=dict)
    hw_counters: Mapping[str, int] = field(default_factory=dict)


@dataclass
class SysfsTree:
    """``root`` is where a node has /sys."""

    root: Path

    def __post_init__(self) -> None:
        for directory in ("bus/pci/devices", "bus/pci/drivers", "class/net", "class/infiniband"):
            (self.root / directory).mkdir(parents=True)
        self.function("0000:00:00.0", pci_class="0x060000", driver="")  # no bus is without a bridge

    def function(
        self,
        pci: str,
        *,
        bus: str = "pci0000:00",
        bridges: tuple[str, ...] = (),
        pci_class: str = "0x020000",
        driver: str = "mlx5_core",
        ids: Mapping[str, str] = CONNECTX_7,
        numa_node: int = 0,
        physical: str | None = None,
    ) -> Path:
        """Plug a function in; with ``physical`` it is a virtual function of that one."""
        device = self.root.joinpath("devices", bus, *bridges, pci)
        device.mkdir(parents=True)
        for name, text in {"class": pci_class, "numa_node": str(numa_node), **ids}.items():
            (device / name).write_text(f"{text}\n")
        link(self.root / "bus/pci/devices" / pci, device)
        if driver:
            self.bind(pci, driver)
        if physical is not None:
            link(device / "physfn", self.device(physical))
            link(self.device(physical) / f"virtfn{len(list(self.device(physical).glob('virtfn*')))}", device)
        return device

    def device(self, pci: str) -> Path:
        """The directory of a function."""
        return (self.root / "bus/pci/devices" / pci).resolve()

    def bind(self, pci: str, driver: str) -> None:
        """Bind a driver to a function."""
        (self.root / "bus/pci/drivers" / driver).mkdir(exist_ok=True)
        link(self.device(pci) / "driver", self.root / "bus/pci/drivers" / driver)

    def unbind(self, pci: str) -> None:
        """Unbind the driver, and remove everything that it created."""
        device = self.device(pci)
        for made in ("net", "infiniband"):
            for each in (device / made).glob("*"):
                (self.root / "class" / made / each.name).unlink()
            shutil.rmtree(device / made, ignore_errors=True)
        (device / "driver").unlink()

    def unplug(self, pci: str) -> None:
        """Take a function off the bus."""
        device = self.device(pci)
        if (device / "driver").exists():
            self.unbind(pci)
        (self.root / "bus/pci/devices" / pci).unlink()
        shutil.rmtree(device)

    def netdev(
        self, pci: str, name: str, *, speed: int = 400_000, port_name: str | None = None, below: str = ""
    ) -> None:
        """Give a function a netdev; with ``below`` it belongs to a child of it, as with virtio."""
        directory = self.device(pci) / below / "net" / name
        directory.mkdir(parents=True)
        link(directory / "device", self.device(pci) / below)
        link(self.root / "class/net" / name, directory)
        self._write(directory / "speed", speed)
        if port_name is not None:
            self._write(directory / "phys_port_name", port_name)

    def virtual_netdev(self, name: str) -> None:
        """Create one that belongs to no device, such as a veth."""
        directory = self.root / "devices/virtual/net" / name
        directory.mkdir(parents=True)
        link(self.root / "class/net" / name, directory)

    def forget_netdev(self, name: str) -> None:
        """Remove a netdev, as when it is moved into another network namespace."""
        shutil.rmtree((self.root / "class/net" / name).resolve())
        (self.root / "class/net" / name).unlink()

    def speed(self, name: str, speed: int) -> None:
        """Change the speed of a netdev, in Mb/s."""
        self._write(self.root / "class/net" / name / "speed", speed)

    def rdma(self, pci: str, name: str, *ports: FakePort) -> None:
        """Give a function an RDMA device."""
        directory = self.device(pci) / "infiniband" / name
        directory.mkdir(parents=True)
        link(directory / "device", self.device(pci))
        link(self.root / "class/infiniband" / name, directory)
        for number, port in enumerate(ports or [FakePort()], start=1):
            self.port(name, port, number=number)

    def port(self, device: str, port: FakePort, *, number: int = 1) -> None:
        """Write the current state of a port."""
        directory = self.port_directory(device, number)
        for group in ("counters", "hw_counters"):
            (directory / group).mkdir(parents=True, exist_ok=True)
        for name in ("link_layer", "state", "phys_state", "rate"):
            self._write(directory / name, getattr(port, name))
        for group, values in {"counters": port.counters, "hw_counters": port.hw_counters}.items():
            for name, value in values.items():
                self._write(directory / group / name, value)

    def _write(self, path: Path, value: object) -> None:
        """Set an attribute atomically: sysfs has no partial values."""
        staged = self.root.with_name("being-written")
        staged.write_text(f"{value}\n")
        staged.replace(path)

    def port_directory(self, device: str, number: int = 1) -> Path:
        """Return a port's path."""
        return self.root / "class/infiniband" / device / "ports" / str(number)


def link(path: Path, target: Path) -> None:
    """Make a relative link, as all are in sysfs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
