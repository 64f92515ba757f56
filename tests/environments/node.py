"""One node in memory: what an agent observes on it, the agent's state file, metrics and verdicts."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.catalog.catalog import EMPTY, Catalog
from kubemend.agent.metrics import Metrics
from kubemend.agent.restarts.dependencies import DeviceFacts
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.sources.program_starts import ProgramStarts
from kubemend.common import aio
from tests.fakes import outside


@dataclass(kw_only=True)
class NodeEnv:
    """A node. ``boot_id``, ``catalog``, ``is_there`` and ``ledger_now`` are those of the verdicts."""

    store: Store
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    pods: outside.Pods = field(default_factory=outside.Pods)
    devices: outside.Devices = field(default_factory=outside.Devices)
    holders: outside.Holders = field(default_factory=outside.Holders)
    events: outside.Events = field(default_factory=outside.Events)
    owners: outside.Owners = field(default_factory=outside.Owners)
    said: outside.Conditions = field(default_factory=outside.Conditions)
    processes: outside.Processes = field(default_factory=outside.Processes)
    access: "aio.Promise[RuntimeAccess]" = field(default_factory=aio.Promise)
    boot_id: str = "boot-1"
    catalog: Catalog = EMPTY
    is_there: Callable[[str], bool | None] = lambda _: None
    ledger_now: Callable[[], float] = time.time
    ledger_clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.registry)
        self.verdict_store = VerdictStore(
            store=self.store,
            boot_id=self.boot_id,
            catalog=self.catalog,
            is_there=self.is_there,
            now=self.ledger_now,
            clock=self.ledger_clock,
        )

    def publisher(self, **options: Any) -> ConditionPublisher:
        """Return a new publisher of this node's conditions; ``options`` are further arguments, or others."""
        usual: dict[str, Any] = {
            "verdict_store": self.verdict_store,
            "pods": self.pods,
            "devices": self.devices,
            "holders": self.holders,
            "reporter": self.said,
        }
        return ConditionPublisher(**(usual | options))

    def facts(self) -> DeviceFacts:
        """Return the known devices of the node."""
        return DeviceFacts(holders=self.holders, verdict_store=self.verdict_store, devices=self.devices)

    def find_runtime(self, restarts: Any, *, runtime: Any = None, programs: ProgramStarts | None = None) -> None:
        """Make the runtime available, with these restarts and starts of programs."""
        self.access.fulfil(RuntimeAccess(restarts, self.events, runtime, programs=programs or ProgramStarts()))

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a metric's value; None if it does not exist."""
        return self.registry.get_sample_value(name, labels)


@contextlib.asynccontextmanager
async def node_in(directory: Path, **options: Any) -> AsyncIterator[NodeEnv]:
    """Open a node whose state file is in that directory."""
    store = await Store.open(directory / "state.db")
    try:
        yield NodeEnv(store=store, **options)
    finally:
        await store.close()


def metrics() -> Metrics:
    """Return metrics in a registry of their own."""
    return Metrics(CollectorRegistry())


def verdicts(store: Store, **options: Any) -> VerdictStore:
    """Return verdicts that are kept in that file, as ``NodeEnv`` has them."""
    return NodeEnv(store=store, **options).verdict_store
