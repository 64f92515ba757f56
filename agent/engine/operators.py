"""What a person on the node may say of devices: that a fault is dealt with, and that the driver is to be let go of."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from agent.engine import ports
from agent.engine.ledger import HealthLedger
from agent.health import fold
from agent.model.actions import ActionClass
from agent.model.devices import locator
from agent.model.findings import Finding, FindingKind, Source
from agent.model.verdicts import Verdict

log = structlog.get_logger(__name__)

LONGEST_RELEASE = 3600.0
"""Seconds for which the driver may be let go of at most: meanwhile no fault that only it tells of is seen."""


class NoSuchDeviceError(LookupError):
    """There is no device of that name on this node, and nothing is held against one. The text is for people."""


class StillHeldError(Exception):
    """The driver has not been let go of in time. The text is one line for people."""


class Handles(Protocol):
    """What can let go of all handles of the driver (``agent.sources.nvml.source.NvmlSource``)."""

    async def release(self, *, timeout: float) -> bool: ...
    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Cleared:
    """What an operator's word has done: what was held and is not any more, and what its source still sees."""

    device: str
    over: tuple[str, ...]
    still_seen: tuple[str, ...]


class Operators:
    """Takes people's words on devices."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        devices: ports.Devices,
        handles: Handles,
        submit: Callable[[Finding], None],
        forget: Callable[[str], None],
        nics: Callable[[], Iterable[str]] = tuple,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``forget`` is told which device need not come back where it is missing; ``nics`` names those there are."""
        self._ledger = ledger
        self._devices = devices
        self._handles = handles
        self._submit = submit
        self._forget = forget
        self._nics = nics
        self._now = now
        self._resume_at: asyncio.TimerHandle | None = None

    def verdicts(self) -> list[Verdict]:
        """Return the verdict of each device that is there, or against which something is held."""
        inventory = self._devices.inventory
        return [self._ledger.verdict(name, inventory=inventory) for name in sorted(self._names())]

    def clear(self, name: str, *, who: str) -> Cleared:
        """Take a person's word that what is held against a device is dealt with. Raises NoSuchDeviceError."""
        device = self._device(name)
        latches = self._ledger.latches(device)
        still_seen = tuple(latch.title for latch in latches if latch.kind in fold.STANDING)
        over = tuple(latch.title for latch in latches if latch.kind not in fold.STANDING)
        log.info("device.cleared", device=device, who=who, over=over, still_seen=still_seen)
        self._forget(device)
        self._submit(
            Finding(
                source=Source.OPERATOR,
                kind=FindingKind.CLEARED,
                code="",
                device=locator(device),
                action=ActionClass.NONE,
                observed_at=self._now(),
                text=f"cleared by {who}",
            )
        )
        return Cleared(device, over, still_seen)

    async def release(self, *, seconds: float, timeout: float, who: str) -> None:
        """Let go of every NVML handle for so long, or until ``resume``.

        Raises StillHeldError when the driver hangs; it is taken up again then, and when who asked goes away meanwhile.
        """
        log.info("driver.released", seconds=seconds, who=who)
        self._cancel()
        released = False
        try:
            released = await self._handles.release(timeout=timeout)
        finally:
            if not released:
                self._handles.resume()
        if not released:
            raise StillHeldError(
                f"the NVML worker has not ended within {timeout:g} s: a call into the driver hangs; reboot the node"
            )
        self._resume_at = asyncio.get_running_loop().call_later(min(seconds, LONGEST_RELEASE), self.resume)

    def resume(self) -> None:
        """Take NVML up again."""
        self._cancel()
        log.info("driver.taken_up_again")
        self._handles.resume()

    def _cancel(self) -> None:
        if self._resume_at is not None:
            self._resume_at.cancel()
            self._resume_at = None

    def _names(self) -> set[str]:
        gpus: set[str] = {gpu.uuid for gpu in self._devices.inventory.gpus}
        return gpus | {*self._nics()} | self._ledger.devices()

    def _device(self, name: str) -> str:
        """Return the device that a person means: by UUID, by PCI address in any spelling, or by NVML index."""
        inventory = self._devices.inventory
        by_index = {str(gpu.index): gpu.uuid for gpu in inventory.gpus}
        known = self._names()
        for spelling in (name, by_index.get(name, ""), str(locator(name).pci or "")):
            if spelling and (device := self._ledger.name(spelling)) in known:
                return device
        there = ", ".join(sorted(known)) or "none"
        raise NoSuchDeviceError(f"there is no device {name} on this node; there are {there}")
