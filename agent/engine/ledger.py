"""Every device's verdict, kept over restarts of the agent."""

import structlog

from agent.engine.metrics import Metrics
from agent.health import fold
from agent.history import codec
from agent.history.store import HistoryError, Store
from agent.model.devices import DeviceLocator, Inventory
from agent.model.findings import Finding
from agent.model.verdicts import Health, Verdict

log = structlog.get_logger(__name__)

_KEY = "health"


class HealthLedger:
    """Folds findings and remembers the result. The fold itself is pure (``agent.health.fold``)."""

    def __init__(self, *, store: Store, metrics: Metrics, boot_id: str) -> None:
        self._store = store
        self._metrics = metrics
        self._state = fold.HealthState(boot_id=boot_id)
        self._boot_id = boot_id
        self._saved = self._state

    async def load(self) -> None:
        """Take up what an earlier agent knew; a reboot since then is evidence (``fold.after_reboot``).

        Raises HistoryError when the state file cannot be read.
        """
        text = await self._store.load(_KEY)
        if text is None:
            return
        try:
            known = codec.health_from_json(text)
        except (KeyError, ValueError, TypeError) as error:
            raise HistoryError(f"the saved verdicts cannot be read: {error!r}; remove the state file") from error
        self._state = fold.after_reboot(known, boot_id=self._boot_id)
        self._saved = self._state

    def apply(self, finding: Finding, *, inventory: Inventory) -> str:
        """Fold one finding; return the key of the device it is about."""
        device = device_key(finding.device, inventory=inventory)
        self._state = fold.fold(self._state, finding, device=device)
        return device

    def verdict(self, device: str, *, inventory: Inventory) -> Verdict:
        """Return a device's verdict now."""
        known = {gpu.uuid for gpu in inventory.gpus}
        answers = device in known if inventory.complete else None
        result = fold.verdict(self._state, device, answers=answers)
        for health in Health:
            self._metrics.device_verdict.labels(device=device, verdict=health.value).set(health is result.health)
        return result

    def devices(self) -> frozenset[str]:
        """Return the devices against which something is held."""
        return frozenset(self._state.devices)

    def latches(self, device: str) -> tuple[fold.Latch, ...]:
        """Return what is held against a device."""
        return self._state.latches(device)

    async def save(self) -> None:
        """Write what changed. A disk that refuses is logged: verdicts in memory still hold."""
        if self._state is self._saved:
            return
        state = self._state
        try:
            await self._store.save(_KEY, codec.health_to_json(state))
        except HistoryError as error:
            log.error("health.not_saved", error=str(error))
        else:
            self._saved = state


def device_key(where: DeviceLocator, *, inventory: Inventory) -> str:
    """Return the name under which a device's health is kept: its GPU's UUID, else its PCI address."""
    gpu = inventory.locate(where)
    if gpu is not None:
        return gpu.uuid
    return str(where.uuid or where.pci or "unknown")
