"""Build the hub client, if a hub is configured.

Its modules are loaded only then, so an agent without a hub saves them.
"""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from kubemend.agent.app.persisted_state import EXITS_HANDLED, StoredIds
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.clients.podresources.client import GpuHolders
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.settings import Settings
from kubemend.agent.sources.nvml.driver import Driver
from kubemend.agent.sources.pods import PodWatch
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus

if TYPE_CHECKING:
    from kubemend.agent.hub.client import Hub

_ALONE = ComponentStatus(ComponentState.IDLE, "no hub is configured (--hub): gangs are not restarted together")
_LATER = ComponentStatus(ComponentState.IDLE, "needs the container runtime first")


def build_hub_client(
    settings: Settings,
    *,
    parts: ComponentRegistry,
    registry: CollectorRegistry,
    pods: PodWatch,
    store: Store,
    holders: GpuHolders,
    driver: Driver,
    verdict_store: VerdictStore,
) -> "Hub | None":
    """Return the hub client; None without a hub. The agent's readiness does not depend on it."""
    report = parts.reporter("hub", needed=False)
    if not settings.hub:
        report(_ALONE)
        return None
    from kubemend.agent.hub import client as coordination
    from kubemend.agent.hub.endpoint import HubEndpoint
    from kubemend.agent.hub.member_devices import Verdicts
    from kubemend.agent.hub.metrics import HubMetrics

    report(_LATER)
    return coordination.Hub(
        HubEndpoint(
            addresses=settings.hub_addresses(),
            name=settings.hub_name,
            ca=settings.hub_ca,
            token=settings.hub_token,
        ),
        identity=coordination.Identity(
            node=settings.node_name,
            opted_in_namespaces=frozenset(settings.opt_in_namespaces),
            dry_run=settings.dry_run,
        ),
        dependencies=coordination.Dependencies(
            pods=pods,
            epochs=store,
            exits=StoredIds(store, EXITS_HANDLED),
            holders=holders,
            loads=driver,
            verdicts=Verdicts(verdict_store=verdict_store, devices=driver, holders=holders),
        ),
        report=report,
        metrics=HubMetrics(registry),
        answer_timeout=settings.hub_answer_timeout,
    )
