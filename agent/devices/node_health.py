"""Publish the health of the node's devices: its condition, its Events, metrics, and taints if they are enabled."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kubemend.agent import ports
from kubemend.agent.devices import event_messages
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.state import node_summary
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.verdicts import Verdict
from kubemend.agent.model.workloads import PodRef


class NodeCondition(Protocol):
    """Write the node's condition to the API server (``agent.reporters.node_condition``)."""

    def set(self, condition: Condition) -> None: ...


class Taints(Protocol):
    """Keep new claims off devices (``agent.reporters.device_taints``)."""

    def set(self, verdicts: Sequence[Verdict]) -> None: ...


class NodeHealth:
    """Publish the node condition when it may have changed. Unchanged conditions are not written."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        devices: ports.Devices,
        condition: NodeCondition,
        events: ports.EventRecorder,
        metrics: Metrics,
        taints: Taints | None = None,
        others: Callable[[], Iterable[str]] = tuple,
        start_grace: float = 10.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``others`` returns the names of the present devices that NVML does not list, ``now`` Unix seconds.

        ``start_grace``: seconds after the start in which Unknown is not published while the driver comes up. Otherwise
        each new agent would change the status, and its time, to Unknown and back.
        """
        self._verdict_store = verdict_store
        self._devices = devices
        self._condition = condition
        self._events = events
        self._metrics = metrics
        self._taints = taints
        self._others = others
        self._event_messages = event_messages.DeviceEventMessages()
        self._clock = asyncio.get_running_loop().time
        self._grace_until = self._clock() + start_grace
        self._now = now

    def publish(self, holders: Mapping[str, Collection[PodRef]] | None) -> None:
        """Publish the health of every device.

        ``holders`` are the pods of each device, by its name in the verdict store; None while kubelet cannot be asked.
        """
        inventory = self._devices.inventory
        names = {str(gpu.uuid) for gpu in inventory.gpus} | {*self._others()} | self._verdict_store.devices()
        verdicts = [self._verdict_store.verdict(name, inventory=inventory) for name in sorted(names)]
        self._metrics.show_devices(verdicts)
        condition = node_summary.of_node(verdicts)
        if condition.status is not ConditionStatus.UNKNOWN or inventory.complete or self._is_grace_over:
            self._condition.set(condition)
        gone = sorted(self._event_messages.open - names)  # they have no active fault, so they may be healthy again
        for verdict in (*verdicts, *(self._verdict_store.verdict(name, inventory=inventory) for name in gone)):
            pods = holders.get(verdict.device, ()) if holders is not None else None
            for event_message in self._event_messages.of(verdict, holders=pods, now=self._now()):
                self._events.record(event_message)
        if self._taints is not None:
            self._taints.set(verdicts)

    @property
    def _is_grace_over(self) -> bool:
        return self._clock() >= self._grace_until
