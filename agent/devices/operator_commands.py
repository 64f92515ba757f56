"""Carry out an operator's commands on devices: clear a fault, and release the driver."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.state import fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Verdict

log = structlog.get_logger(__name__)


class NoSuchDeviceError(LookupError):
    """No device of that name exists on this node or has an active fault. The text is for people."""


class StillHeldError(Exception):
    """The driver was not released in time. The text is one line for people."""


class Handles(Protocol):
    """Release and resume all handles of the driver (``agent.sources.nvml.source.NvmlSource``)."""

    async def release(self, *, timeout: float) -> bool: ...
    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Cleared:
    """The effect of a clear: the faults that were ended, and those that their source still sees."""

    device: str
    over: tuple[str, ...]
    still_seen: tuple[str, ...]


class OperatorCommands:
    """Carry out operators' commands on devices."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        devices: ports.Devices,
        handles: Handles,
        submit: Callable[[Finding], None],
        forget: Sequence[Callable[[str], None]],
        others: Callable[[], Iterable[str]] = tuple,
        unobserved: Callable[[str], Collection[FindingKind]] = lambda _: (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Each ``forget`` receives the device that need not come back if missing; ``others`` names the
        present devices that NVML does not list. ``unobserved`` returns the kinds of faults of a device that their
        source cannot see any more, and ends when it forgets the device.
        """
        self._verdict_store = verdict_store
        self._devices = devices
        self._handles = handles
        self._submit = submit
        self._forget = forget
        self._others = others
        self._unobserved = unobserved
        self._now = now
        self._resume_at: asyncio.TimerHandle | None = None

    def verdicts(self) -> list[Verdict]:
        """Return the verdict of each device that is present or has an active fault."""
        inventory = self._devices.inventory
        return [self._verdict_store.verdict(name, inventory=inventory) for name in sorted(self._names())]

    def clear(self, name: str, *, operator: str) -> Cleared:
        """End a device's faults at an operator's command. Raises NoSuchDeviceError."""
        device = self._device(name)
        observed = fold.KEPT_BY_CLEAR.difference(self._unobserved(device))
        active_faults = self._verdict_store.active_faults(device)
        for forget in self._forget:
            forget(device)
        is_gone = self._is_gone(device)
        kept = () if is_gone else tuple(each for each in active_faults if each.kind in observed)
        still_seen = tuple(each.title for each in kept)
        over = tuple(each.title for each in active_faults if each not in kept)
        log.info("device.cleared", device=device, operator=operator, over=over, still_seen=still_seen)
        self._submit(
            Finding(
                source=Source.OPERATOR,
                kind=FindingKind.CLEARED,
                code=fold.GONE if is_gone else "",
                device=locator(device),
                action=ActionClass.NONE,
                observed_at=self._now(),
                text=f"cleared by {operator}",
            )
        )
        return Cleared(device, over, still_seen)

    async def release(self, *, seconds: float, timeout: float, operator: str) -> None:
        """Release every NVML handle for ``seconds``, or until ``resume``.

        Raises StillHeldError if the driver hangs. NVML is resumed then, and when the caller goes away during the
        release.
        """
        log.info("driver.released", seconds=seconds, operator=operator)
        self._cancel()
        released = False
        try:
            released = await self._handles.release(timeout=timeout)
        finally:
            if not released:
                self._handles.resume()
        if not released:
            raise StillHeldError(
                f"the NVML worker did not end within {timeout:g} s: a call into the driver hangs. Reboot the node."
            )
        self._resume_at = asyncio.get_running_loop().call_later(seconds, self.resume)

    def resume(self) -> None:
        """Resume NVML."""
        self._cancel()
        log.info("driver.reacquired")
        self._handles.resume()

    def _cancel(self) -> None:
        if self._resume_at is not None:
            self._resume_at.cancel()
            self._resume_at = None

    def _is_gone(self, device: str) -> bool:
        """Return whether the driver proves that it has no such GPU, as after an exchange."""
        uuid, inventory = locator(device).uuid, self._devices.inventory
        return uuid is not None and inventory.complete and inventory.by_id(uuid) is None

    def _names(self) -> set[str]:
        gpus: set[str] = {gpu.uuid for gpu in self._devices.inventory.gpus}
        return gpus | {*self._others()} | self._verdict_store.devices()

    def _device(self, name: str) -> str:
        """Return the device that a name refers to: a UUID, a PCI address in any spelling, or an NVML index."""
        inventory = self._devices.inventory
        by_index = {str(index): gpu.uuid for index, gpu in inventory.by_index().items()}
        known = self._names()
        for spelling in (name, by_index.get(name, ""), str(locator(name).pci or "")):
            if spelling and (device := self._verdict_store.name(spelling)) in known:
                return device
        there = ", ".join(sorted(known)) or "none"
        raise NoSuchDeviceError(f"device {name} not found on this node. Its devices: {there}")
