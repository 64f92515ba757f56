"""The hub, where one is set. What belongs to it is loaded only then: an agent that works alone does without."""

import importlib.metadata
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from agent.app.holders import GpuHolders
from agent.engine.ledger import HealthLedger
from agent.history.store import Store
from agent.settings import Settings
from agent.sources.nvml.driver import Driver
from agent.sources.pods import PodWatch
from common.parts import Parts, PartState, PartStatus

if TYPE_CHECKING:
    from agent.coordination.hub import Hub

_ALONE = PartStatus(PartState.IDLE, "no hub is set (--hub): gangs are not restarted together")
_LATER = PartStatus(PartState.IDLE, "needs the container runtime first")


def hub(
    settings: Settings,
    *,
    parts: Parts,
    registry: CollectorRegistry,
    pods: PodWatch,
    store: Store,
    holders: GpuHolders,
    driver: Driver,
    ledger: HealthLedger,
) -> "Hub | None":
    """Return the agent's end of the hub; None where none is set. The agent is ready without, too."""
    report = parts.reporter("hub", needed=False)
    if not settings.hub:
        report(_ALONE)
        return None
    from agent.coordination import hub as coordination
    from agent.coordination.dialing import Where
    from agent.coordination.metrics import HubMetrics
    from agent.coordination.verdicts import Verdicts

    report(_LATER)
    return coordination.Hub(
        Where(
            addresses=settings.hub_addresses(),
            name=settings.hub_name,
            ca=settings.hub_ca,
            token=settings.hub_token,
        ),
        identity=coordination.Identity(
            node=settings.node_name,
            version=importlib.metadata.version("kubemend"),
            opted_in_namespaces=frozenset(settings.namespaces),
            dry_run=settings.dry_run,
        ),
        outside=coordination.Outside(
            pods=pods,
            epochs=store,
            holders=holders,
            loads=driver,
            verdicts=Verdicts(ledger=ledger, devices=driver, holders=holders),
        ),
        report=report,
        metrics=HubMetrics(registry),
        patience=settings.hub_patience,
    )
