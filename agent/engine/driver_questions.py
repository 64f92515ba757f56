"""Asking the driver about faults that the catalog leaves to it, until it wants nothing done any more."""

import time
from collections.abc import Callable

import structlog

from agent.engine import ports
from agent.engine.faults import Noted
from agent.engine.ledger import HealthLedger
from agent.health import evidence, fold
from agent.model.actions import ActionClass
from agent.model.devices import locator
from agent.model.findings import Finding, FindingKind, Source
from common import aio

log = structlog.get_logger(__name__)

_DRIVER_SECONDS = 2.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between two questions about one fault


class DriverQuestions:
    """What the driver is being asked. ``submit`` takes its word as findings."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        devices: ports.Devices,
        classify: Callable[[FindingKind, str], ActionClass],
        submit: Callable[[Finding], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._devices = devices
        self._classify = classify
        self._submit = submit
        self._now = now
        self._open: set[tuple[str, FindingKind, str, int | None]] = set()

    def unanswered(self, device: str) -> list[Noted]:
        """Return what an earlier agent left to the driver and got no answer to. Nobody is restarted for it."""
        return [
            Noted(finding=_of_earlier(latch, device=device), device=device, process=None)
            for latch in self._ledger.latches(device)
            if latch.action is ActionClass.ASK_DRIVER
        ]

    async def licensed(self, noted: Noted) -> bool:
        """Ask until the driver wants nothing done; False when that does not matter (any more) for this fault.

        It may not be up yet, or hang, or be content only after a reset: nobody would hear of any of that later.
        """
        finding = noted.finding
        question = noted.device, finding.kind, finding.code, finding.pid
        if question in self._open:
            return False
        self._open.add(question)
        try:
            return await self._until_content(noted)
        finally:
            self._open.discard(question)

    async def _until_content(self, noted: Noted) -> bool:
        backoff = aio.Backoff(first=_FIRST_WAIT, limit=_LONGEST_WAIT)
        said: int | None = None
        while True:
            gpu = self._devices.inventory.locate(noted.finding.device)
            code = await self._devices.recovery_action(gpu.uuid, timeout=_DRIVER_SECONDS) if gpu is not None else None
            if code is None:
                log.debug("driver.no_verdict", device=noted.device, finding=noted.finding.title)
            elif code != said:
                said, word = code, self._word(noted, code=code)
                self._submit(word)
                if word.action is ActionClass.NONE:
                    return True
            await backoff.wait()
            if not self._is_held(noted):
                return False

    def _word(self, noted: Noted, *, code: int) -> Finding:
        return Finding(
            source=Source.NVML,
            kind=FindingKind.RECOVERY_ACTION,
            code=str(code),
            device=noted.finding.device,
            action=self._classify(FindingKind.RECOVERY_ACTION, str(code)),
            observed_at=self._now(),
            text=f"asked after {noted.finding.title}",
        )

    def _is_held(self, noted: Noted) -> bool:
        fault = noted.finding.kind, noted.finding.code
        return any((latch.kind, latch.code) == fault for latch in self._ledger.latches(noted.device))


def _of_earlier(latch: fold.Latch, *, device: str) -> Finding:
    return Finding(
        source=Source.NVML,
        kind=latch.kind,
        code=latch.code,
        device=locator(device),
        action=latch.action,
        observed_at=latch.last_seen,
        text=latch.text,
        evidence={evidence.LOOK_BACK: "true"},
    )
