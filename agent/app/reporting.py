"""All reporters to Kubernetes: conditions of pods and of the node, Events, and taints if enabled."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Self

from kubemend.agent.metrics import Metrics
from kubemend.agent.reporters.device_taints import DeviceTaintReporter
from kubemend.agent.reporters.events import EventReporter
from kubemend.agent.reporters.node_condition import NodeConditionReporter
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.reporters.restart_counts import RestartCounts
from kubemend.agent.restarts.slots import Slots
from kubemend.agent.settings import Settings
from kubemend.agent.sources.pods import PodWatch
from kubemend.common.components import ComponentRegistry
from kubemend.common.kube import client as kube

_WRITES_AT_ONCE: Final = 8
"""Writes of pods' conditions at once; one namespace has seven at most."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """The reporters. ``taints`` is None if disabled."""

    pods: PodConditionReporter
    node: NodeConditionReporter
    events: EventReporter
    taints: DeviceTaintReporter | None
    counts: RestartCounts

    @classmethod
    def of(
        cls, settings: Settings, *, api: kube.KubeClient, pods: PodWatch, metrics: Metrics, parts: ComponentRegistry
    ) -> Self:
        """Create all reporters."""
        name = settings.node_name
        taints = None
        if settings.taints_devices():
            taints = DeviceTaintReporter(
                api=api,
                node_name=name,
                report=parts.reporter("device-taints"),
                if_stable=settings.device_taints is None,
            )
        return cls(
            pods=PodConditionReporter(
                api=api,
                look_up=pods.pods().get,
                slots=Slots(_WRITES_AT_ONCE),
                on_outcome=lambda outcome: metrics.condition_patches.labels(outcome.value).inc(),
            ),
            node=NodeConditionReporter(
                api=api,
                node_name=name,
                report=parts.reporter("node-condition"),
                on_outcome=lambda outcome: metrics.node_condition_patches.labels(outcome.value).inc(),
            ),
            events=EventReporter(
                api=api,
                node_name=name,
                report=parts.reporter("events"),
                on_outcome=lambda outcome, count: metrics.events.labels(outcome.value).inc(count),
            ),
            taints=taints,
            counts=RestartCounts(api=api, pods=pods.pods),
        )

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that must run indefinitely, by name."""
        tasks = {
            "pod-conditions": self.pods.run(),
            "node-condition": self.node.run(),
            "events": self.events.run(),
            "restart-counts": self.counts.run(),
        }
        if self.taints is not None:
            tasks["device-taints"] = self.taints.run()
        return tasks
