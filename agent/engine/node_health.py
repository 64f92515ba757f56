"""What the node as a whole is told of its devices: its condition, events, and taints where they are asked for."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.engine import announcements, ports
from agent.engine.ledger import HealthLedger
from agent.health import node_summary
from agent.model.conditions import Condition, ConditionStatus
from agent.model.verdicts import Verdict
from agent.model.workloads import PodRef


class NodeCondition(Protocol):
    """Brings the node's condition to the API (``agent.reporters.node_condition``)."""

    def set(self, condition: Condition) -> None: ...


class Taints(Protocol):
    """Keeps new claims off devices (``agent.reporters.device_taints``)."""

    def set(self, verdicts: Sequence[Verdict]) -> None: ...


class NodeHealth:
    """Says it again whenever that may have changed; what is said already costs nothing."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        devices: ports.Devices,
        condition: NodeCondition,
        events: ports.Announcements,
        taints: Taints | None = None,
        nics: Callable[[], Iterable[str]] = tuple,
        patience: float = 10.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``nics`` gives the names of the NICs that are there, ``now`` Unix seconds.

        ``patience``: for how many seconds after its start an agent does not say that it cannot tell, while the driver
        comes up. Else each new agent would change the status, and its time, to Unknown and back.
        """
        self._ledger = ledger
        self._devices = devices
        self._condition = condition
        self._events = events
        self._taints = taints
        self._nics = nics
        self._announcements = announcements.DeviceAnnouncements()
        self._clock = asyncio.get_running_loop().time
        self._patient_until = self._clock() + patience
        self._now = now

    def publish(self, holders: Mapping[str, Collection[PodRef]] | None) -> None:
        """Say how every device is. ``holders`` are the pods of each device, by the name under which its health is
        kept; None while kubelet cannot be asked.
        """
        inventory = self._devices.inventory
        names = {str(gpu.uuid) for gpu in inventory.gpus} | {*self._nics()} | self._ledger.devices()
        verdicts = [self._ledger.verdict(name, inventory=inventory) for name in sorted(names)]
        condition = node_summary.of_node(verdicts)
        if condition.status is not ConditionStatus.UNKNOWN or inventory.complete or self._patience_is_over:
            self._condition.set(condition)
        gone = sorted(self._announcements.open - names)  # nothing is held against them, so they may be healthy again
        for verdict in (*verdicts, *(self._ledger.verdict(name, inventory=inventory) for name in gone)):
            pods = holders.get(verdict.device, ()) if holders is not None else None
            for announcement in self._announcements.of(verdict, holders=pods, now=self._now()):
                self._events.tell(announcement)
        if self._taints is not None:
            self._taints.set(verdicts)

    @property
    def _patience_is_over(self) -> bool:
        return self._clock() >= self._patient_until
