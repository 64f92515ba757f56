"""Metrics of the agent and the controller, read from their real registries. Writes docs/metrics.md."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hack import generated
from kubemend.agent.hub.metrics import HubMetrics as AgentHubMetrics
from kubemend.agent.metrics import Metrics as AgentMetrics
from kubemend.agent.restarts.budgets import BudgetGauges, Budgets
from kubemend.common.budgets import Window
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.metrics import Metrics as ControllerMetrics

AGENT: Final = "agent"
CONTROLLER: Final = "controller"

_KINDS: Final = (
    (AGENT, False, "Of each agent"),
    (CONTROLLER, False, "Of each controller"),
    (AGENT, True, "Of both processes"),
)


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric, by its name without the suffix of its kind (``_total``, ``_bucket``)."""

    owner: str
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def of_process(self) -> bool:
        """Whether the client library exports it for every process."""
        return self.name.startswith(("process_", "python_"))

    @property
    def shown(self) -> str:
        """The name as people search for it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def series(self) -> Mapping[str, frozenset[str]]:
        """Return the labels of each series that is scraped, by its name."""
        own = frozenset(self.labels)
        if self.kind == "histogram":
            return {f"{self.name}_bucket": own | {"le"}, f"{self.name}_sum": own, f"{self.name}_count": own}
        return {self.shown: own}


class _Registry(CollectorRegistry):
    """A registry that records the registered collectors."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Register and record a collector."""
        super().register(collector)
        self.collectors.append(collector)


def exported() -> tuple[Exported, ...]:
    """Return every metric of the agent and of the controller, in the order of their creation."""
    return (*_of(AGENT, _agent()), *_of(CONTROLLER, _controller()))


def _agent() -> _Registry:
    registry = _Registry()
    _process(registry)
    metrics = AgentMetrics(registry)
    # Only described: the budgets are not read, so their data need not exist.
    nothing: Any = cast("Any", None)
    budgets = Budgets(store=nothing, now=time.time, storm=Window(1, 1.0))
    metrics.watch(BudgetGauges(budgets, pods=nothing, now=time.time))
    AgentHubMetrics(registry)
    return registry


def _controller() -> _Registry:
    registry = _Registry()
    _process(registry)
    ControllerMetrics(registry)
    HubMetrics(registry)
    JobSetMetrics(registry)
    return registry


def _process(registry: CollectorRegistry) -> None:
    """Register the collectors that ``common.process_metrics.registry`` registers first."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)


def _of(owner: str, registry: _Registry) -> Iterator[Exported]:
    for collector in registry.collectors:
        own = getattr(collector, "_labelnames", None)  # of a metric; computed families have their own
        describe = getattr(collector, "describe", collector.collect)
        for family in describe():
            labels = own if own is not None else getattr(family, "_labelnames", ())
            yield Exported(owner, family.name, family.type, tuple(labels), family.documentation)


def render(metrics: Iterable[Exported]) -> str:
    """Return docs/metrics.md."""
    known = sorted(metrics, key=lambda each: each.name)
    return generated.text("metrics.md", metrics=known, kinds=_KINDS)
