"""Every device's verdict, kept over restarts of the agent."""

import time
from collections.abc import Callable, Iterable

import structlog

from agent.engine.metrics import Metrics
from agent.health import fold, recurrence
from agent.health.catalog import EMPTY, Catalog
from agent.history import codec
from agent.history.store import HistoryError, Store
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, GpuUuid, Inventory, device_key
from agent.model.findings import Finding, FindingKind
from agent.model.verdicts import Health, Verdict

log = structlog.get_logger(__name__)

_HEALTH, _RECURRENCE = "health", "recurrence"


class HealthLedger:
    """Folds findings and remembers the result. The fold itself is pure (``agent.health.fold``)."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        boot_id: str,
        catalog: Catalog = EMPTY,
        is_there: Callable[[str], bool | None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``is_there`` says of a device that is no GPU whether it is there; None: it is not known of any."""
        self._store = store
        self._metrics = metrics
        self._catalog = catalog
        self._is_there = is_there
        self._now = now
        self._state = fold.HealthState(boot_id=boot_id)
        self._boot_id = boot_id
        self._history = recurrence.History()
        self._saved = self._state, self._history
        self._inventory = Inventory()
        self._names: dict[str, str] = {}

    async def load(self) -> None:
        """Take up what an earlier agent knew; a reboot since then is evidence (``fold.after_reboot``).

        Raises HistoryError when the state file cannot be read.
        """
        known, before = await self._store.load(_HEALTH), await self._store.load(_RECURRENCE)
        try:
            if known is not None:
                self._state = fold.after_reboot(codec.health_from_json(known), boot_id=self._boot_id)
            if before is not None:
                self._history = codec.recurrence_from_json(before)
        except (KeyError, ValueError, TypeError) as error:
            raise HistoryError(f"the saved verdicts cannot be read: {error!r}; remove the state file") from error
        self._saved = self._state, self._history

    def apply(self, finding: Finding, *, inventory: Inventory, pod: str = "") -> str:
        """Fold one finding; return the key of the device it is about. ``pod`` is the UID of the one that it hit."""
        device, now = self.key(finding.device, inventory=inventory), self._now()
        self._state = fold.fold(self._state, finding, device=device, catalog=self._catalog, now=now)
        self._history, repeated = recurrence.noted(
            self._history, finding, device=device, pod=pod, catalog=self._catalog
        )
        if repeated is not None:
            self._state = fold.fold(self._state, repeated, device=device, catalog=self._catalog, now=now)
        return device

    def verdict(self, device: str, *, inventory: Inventory) -> Verdict:
        """Return a device's verdict now."""
        self._align(inventory)
        device = self.name(device)
        known = {gpu.uuid for gpu in inventory.gpus}
        answers = (device in known and device not in inventory.silent) if inventory.complete else None
        if device not in known and (is_there := self._is_there(device)) is not None:
            answers = is_there
        result = fold.verdict(self._state, device, answers=answers)
        for health in Health:
            self._metrics.device_verdict.labels(device=device, verdict=health.value).set(health is result.health)
        return result

    def worst_action(self, devices: Iterable[str], *, inventory: Inventory) -> ActionClass:
        """Return the gravest action that any of the devices needs."""
        actions = (self.verdict(device, inventory=inventory).action for device in devices)
        return max(actions, key=lambda action: action.severity, default=ActionClass.NONE)

    def devices(self) -> frozenset[str]:
        """Return the devices against which something is held."""
        return frozenset(self._state.devices)

    def held(self, kind: FindingKind) -> list[GpuUuid]:
        """Return the GPUs against which something of a kind is held."""
        return [GpuUuid(device) for device in self.devices() if any(x.kind is kind for x in self.latches(device))]

    def latches(self, device: str) -> tuple[fold.Latch, ...]:
        """Return what is held against a device."""
        return self._state.latches(self.name(device))

    def key(self, where: DeviceLocator, *, inventory: Inventory) -> str:
        """Return the name under which the health of what is there is kept."""
        self._align(inventory)
        return self.name(device_key(where, inventory=inventory))

    def name(self, device: str) -> str:
        """Return the name under which a device's health is kept now: one that was known by its PCI address alone gets
        its UUID when the driver has told it, and keeps that when the driver loses it."""
        return self._names.get(device, device)

    def _align(self, inventory: Inventory) -> None:
        if inventory is self._inventory:
            return
        before, self._inventory = self._inventory, inventory
        self._names |= {str(gpu.pci): gpu.uuid for gpu in inventory.gpus}
        self._state = fold.renamed(self._state, self._names)
        there = {gpu.uuid for gpu in inventory.gpus} | self.devices()
        self._metrics.forget({*self._names, *(gpu.uuid for gpu in before.gpus)} - there)

    async def save(self) -> None:
        """Write what changed. A disk that refuses is logged: verdicts in memory still hold."""
        state, history = self._state, self._history
        saved_state, saved_history = self._saved
        try:
            if state is not saved_state:
                await self._store.save(_HEALTH, codec.health_to_json(state))
            if history is not saved_history:
                await self._store.save(_RECURRENCE, codec.recurrence_to_json(history))
        except HistoryError as error:
            log.error("health.not_saved", error=str(error))
        else:
            self._saved = state, history


def gpu_keys(held: Iterable[GpuUuid], *, inventory: Inventory) -> frozenset[str]:
    """Return the names under which the health of held devices is kept: a MIG instance shares its GPU's."""
    return frozenset(gpu.uuid if (gpu := inventory.by_uuid(uuid)) is not None else uuid for uuid in held)
