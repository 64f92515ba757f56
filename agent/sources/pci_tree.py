"""The PCI tree as sysfs shows it: which GPUs and network adapters are below a port."""

from collections.abc import Iterator
from pathlib import Path

from agent.model.devices import PciAddress

_NETWORK, _DISPLAY, _BRIDGE, _ACCELERATOR = 0x02, 0x03, 0x06, 0x12
_NVSWITCH = 0x0680
"""An NVSwitch is a bridge of the subclass "other"; all other bridges lead to further PCI devices."""


class PciTree:
    """Looks up what is where. Answers are kept until ``forget``: a flood of errors asks the same again and again."""

    def __init__(self, sysfs: Path) -> None:
        """Prepare to look below ``sysfs``, the node's ``/sys``, and note what is there: it may be gone by then."""
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._answers: dict[PciAddress, tuple[PciAddress, ...]] = {}
        names = dict(_addresses(self._devices))
        self._readable = bool(names)
        self._seen = {address for address, path in names.items() if _counts(path, kind=_class(path))}

    def forget(self) -> None:
        """Look again next time: devices come and go."""
        self._answers.clear()

    def below(self, address: PciAddress) -> tuple[PciAddress, ...]:
        """Return the GPUs, NVSwitches and network adapters at the address and below it, in order.

        A disk is none of them. One that sysfs showed before counts though it is gone; where sysfs shows nothing at
        all, the address itself is the answer.
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
    """Yield what counts at the path and below it."""
    if _counts(path, kind=kind):
        yield address
    elif kind >> 8 == _BRIDGE:
        for child, child_path in _addresses(path):
            if (child_kind := _class(child_path)) is not None:
                yield from _found(child, path=child_path, kind=child_kind)


def _counts(path: Path, *, kind: int | None) -> bool:
    """Whether it is a device whose health is told. A virtual function is its physical function's own matter."""
    if kind is None or (kind != _NVSWITCH and kind >> 8 not in (_NETWORK, _DISPLAY, _ACCELERATOR)):
        return False
    return not (path / "physfn").exists()


def _addresses(path: Path) -> Iterator[tuple[PciAddress, Path]]:
    """Yield the PCI devices that a directory holds."""
    try:
        children = list(path.iterdir())
    except OSError:
        return  # gone in this moment, or no sysfs
    for child in children:
        try:
            address = PciAddress.parse(child.name)
        except ValueError:
            continue
        if str(address) == child.name:  # not 0000:00:03.0:pcie001, a service of a port
            yield address, child


def _class(path: Path) -> int | None:
    """Return class and subclass as one number (0x0302), or None where the device is not there."""
    try:
        return int((path / "class").read_text("ascii"), 16) >> 8
    except (OSError, ValueError):
        return None
