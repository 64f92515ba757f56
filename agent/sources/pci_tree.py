"""The PCI tree in sysfs: the GPUs and network adapters below a port."""

from collections.abc import Iterator
from pathlib import Path

from kubemend.agent.model.devices import PciAddress

_NETWORK, _DISPLAY, _BRIDGE, _ACCELERATOR = 0x02, 0x03, 0x06, 0x12
_NVSWITCH = 0x0680
"""An NVSwitch is a bridge of the subclass "other"; all other bridges lead to further PCI devices."""


class PciTree:
    """Finds devices by address.

    Answers are cached until ``forget``, because a flood of errors repeats the same query.
    """

    def __init__(self, sysfs: Path) -> None:
        """Read the devices below ``sysfs``, the node's ``/sys``, now: they may be gone at the first query."""
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._answers: dict[PciAddress, tuple[PciAddress, ...]] = {}
        names = dict(_addresses(self._devices))
        self._readable = bool(names)
        self._seen = {address for address, path in names.items() if _counts(path, kind=_class(path))}

    def forget(self) -> None:
        """Drop the cache, because devices come and go."""
        self._answers.clear()

    def below(self, address: PciAddress) -> tuple[PciAddress, ...]:
        """Return the GPUs, NVSwitches and network adapters at the address and below it, in order.

        Disks and other devices are excluded. A device that sysfs showed before counts even if it is gone. If sysfs is
        empty, the address itself is the answer.
        """
        if (answer := self._answers.get(address)) is None:
            path = self._devices / str(address)
            kind = _class(path)
            if kind is None:
                answer = (address,) if address in self._seen or not self._readable else ()
            else:
                answer = tuple(sorted(_found(address, path=path, kind=kind)))
                self._seen.update(answer)
            self._answers[address] = answer
        return answer


def _found(address: PciAddress, *, path: Path, kind: int) -> Iterator[PciAddress]:
    """Yield the relevant devices at the path and below it."""
    if _counts(path, kind=kind):
        yield address
    elif kind >> 8 == _BRIDGE:
        for child, child_path in _addresses(path):
            if (child_kind := _class(child_path)) is not None:
                yield from _found(child, path=child_path, kind=child_kind)


def _counts(path: Path, *, kind: int | None) -> bool:
    """Return whether kubemend tracks the health of the device. Virtual functions belong to their physical function."""
    if kind is None or (kind != _NVSWITCH and kind >> 8 not in (_NETWORK, _DISPLAY, _ACCELERATOR)):
        return False
    return not (path / "physfn").exists()


def _addresses(path: Path) -> Iterator[tuple[PciAddress, Path]]:
    """Yield the PCI devices in a directory."""
    try:
        children = list(path.iterdir())
    except OSError:
        return  # just removed, or no sysfs
    for child in children:
        try:
            address = PciAddress.parse(child.name)
        except ValueError:
            continue
        if str(address) == child.name:  # excludes 0000:00:03.0:pcie001, a service of a port
            yield address, child


def _class(path: Path) -> int | None:
    """Return class and subclass as one number (0x0302), or None where the device does not exist."""
    try:
        return int((path / "class").read_text("ascii"), 16) >> 8
    except (OSError, ValueError):
        return None
