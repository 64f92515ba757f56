"""Store every device's verdict across restarts of the agent."""

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import structlog

from kubemend.agent.clients.journal import codec
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.health.catalog.catalog import EMPTY, Catalog
from kubemend.agent.health.kmsg import record_key
from kubemend.agent.health.state import fold, recurrence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, device_key
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Verdict

log = structlog.get_logger(__name__)

_HEALTH, _RECURRENCE = "health", "recurrence"


class VerdictStore:
    """Fold findings and keep the result. The fold itself is pure (``agent.health.state.fold``)."""

    def __init__(
        self,
        *,
        store: Store,
        boot_id: str,
        catalog: Catalog = EMPTY,
        is_there: Callable[[str], bool | None] = lambda _: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``is_there`` returns whether a device that is no GPU is present; None: unknown.

        ``now`` is Unix time; ``clock`` counts the time since a fault, however that is set.
        """
        self._store = store
        self._catalog = catalog
        self._is_there = is_there
        self._now = now
        self._clock = clock
        self._state = fold.HealthState(boot_id=boot_id)
        self._boot_id = boot_id
        self._history = recurrence.History()
        self._saved = self._state, self._history
        self._folded_before = ""
        self._inventory = DeviceInventory()
        self._names: dict[str, str] = {}
        self._places: dict[str, str] = {}
        """The PCI addresses that GPUs had on the previous boot, by UUID, of those that NVML has not listed since."""
        self._last_faults: dict[str, float] = {}  # by ``clock``

    async def load(self, *, places: Mapping[str, str] = MappingProxyType({})) -> None:
        """Load the verdicts of a previous agent. A reboot since then is evidence (``fold.after_reboot``).

        ``places`` has the PCI addresses of its GPUs by UUID. Raises JournalError if the state file cannot be read.
        """
        known, before = await self._store.load(_HEALTH), await self._store.load(_RECURRENCE)
        try:
            if known is not None:
                state = codec.health_from_json(known)
                self._state = fold.after_reboot(state, boot_id=self._boot_id, places=places)
                self._places = dict(places) if state.boot_id != self._boot_id else {}
            if before is not None:
                self._history = codec.recurrence_from_json(before)
        except codec.UNREADABLE as error:
            raise JournalError(f"cannot read the saved verdicts: {error!r}. Remove the state file.") from error
        self._saved = self._state, self._history
        self._folded_before = self._state.newest_key

    def was_folded(self, finding: Finding) -> bool:
        """Return whether a previous agent has folded the finding, which is read from the kernel log again.

        Its end may have been folded as well, and is not reported again.
        """
        return finding.source is Source.KERNEL_LOG and record_key.reaches(self._folded_before, finding.key)

    def apply(self, finding: Finding, *, inventory: DeviceInventory, pod: str = "") -> str:
        """Fold one finding, once; return the key of its device. ``pod`` is the UID of the pod that it hit."""
        device = self.key(finding.device, inventory=inventory)
        if not self.was_folded(finding):
            self._fold(finding, device=device, pod=pod)
        if finding.action.severity >= ActionClass.RESTART_APP.severity and finding.kind not in fold.EVIDENCE:
            seen = self._clock() - max(0.0, self._now() - finding.observed_at)
            self._last_faults[device] = max(seen, self._last_faults.get(device, seen))
        return device

    def _fold(self, finding: Finding, *, device: str, pod: str) -> None:
        now = self._now()
        self._state = fold.fold(self._state, finding, device=device, catalog=self._catalog, now=now)
        self._history, repeated = recurrence.noted(
            self._history, finding, device=device, pod=pod, catalog=self._catalog
        )
        if repeated is not None:
            self._state = fold.fold(self._state, repeated, device=device, catalog=self._catalog, now=now)

    def verdict(self, device: str, *, inventory: DeviceInventory) -> Verdict:
        """Return a device's current verdict."""
        self._align(inventory)
        device = self.name(device)
        answers = inventory.answers(device)
        if not answers and (is_there := self._is_there(device)) is not None:
            answers = is_there
        return fold.verdict(self._state, device, answers=answers)

    def worst_action(self, devices: Iterable[str], *, inventory: DeviceInventory) -> ActionClass:
        """Return the most severe action that any of the devices needs."""
        actions = (self.verdict(device, inventory=inventory).action for device in devices)
        return max(actions, key=lambda action: action.severity, default=ActionClass.NONE)

    def devices(self) -> frozenset[str]:
        """Return the devices with active faults."""
        return frozenset(self._state.devices)

    def held(self, kind: FindingKind) -> list[DeviceId]:
        """Return the GPUs with an active fault of the kind."""
        return [DeviceId(name) for name in self.devices() if any(x.kind is kind for x in self.active_faults(name))]

    def active_faults(self, device: str) -> tuple[fold.ActiveFault, ...]:
        """Return a device's active faults."""
        return self._state.active_faults(self.name(device))

    def since_fault(self, device: str) -> float:
        """Return the seconds since a device last had a fault that calls for more than observation.

        Infinity if it had none since this agent's start.
        """
        return self._clock() - self._last_faults.get(self.name(device), float("-inf"))

    def key(self, where: DeviceLocator, *, inventory: DeviceInventory) -> str:
        """Return the store's name of the located device."""
        self._align(inventory)
        return self.name(device_key(where, inventory=inventory))

    def name(self, device: str) -> str:
        """Return a device's current name in the store.

        A device that was known by its PCI address only is renamed to its UUID when the driver reports that, and keeps
        the UUID when the driver loses it.
        """
        return self._names.get(device, device)

    def _align(self, inventory: DeviceInventory) -> None:
        if inventory is self._inventory:
            return
        self._inventory = inventory
        here = {str(gpu.pci): gpu.uuid for gpu in inventory.gpus}
        moved = set(here.values())
        self._names = {name: uuid for name, uuid in self._names.items() if uuid not in moved} | here
        back = {self._places.pop(uuid): uuid for uuid in moved & self._places.keys()}  # perhaps at other addresses
        self._state = fold.renamed(self._state, {**back, **self._names})
        for name in self._last_faults.keys() & self._names.keys():
            seen, current = self._last_faults.pop(name), self._names[name]
            self._last_faults[current] = max(seen, self._last_faults.get(current, seen))

    async def save(self) -> None:
        """Write changes to disk. A write error is logged, and the verdicts in memory stay valid."""
        state, history = self._state, self._history
        saved_state, saved_history = self._saved
        try:
            if state is not saved_state:
                await self._store.save(_HEALTH, codec.health_to_json(state))
            if history is not saved_history:
                await self._store.save(_RECURRENCE, codec.recurrence_to_json(history))
        except JournalError as error:
            log.error("health.save_failed", error=str(error))
        else:
            self._saved = state, history


def gpu_keys(held: Iterable[DeviceId], *, inventory: DeviceInventory) -> frozenset[str]:
    """Return the store's names of held devices: a MIG instance has its GPU's."""
    return frozenset(gpu.uuid if (gpu := inventory.by_id(uuid)) is not None else uuid for uuid in held)
