"""Everything that tells Kubernetes: conditions of pods and of the node, events, and taints where they are wanted."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Self

from agent.engine.metrics import Metrics
from agent.reporters.device_taints import DeviceTaintReporter
from agent.reporters.events import EventReporter
from agent.reporters.node_condition import NodeConditionReporter
from agent.reporters.pod_conditions import PodConditionReporter
from agent.settings import Settings
from agent.sources.pods import PodWatch
from common.kube import client as kube
from common.parts import Parts


@dataclass(frozen=True, slots=True)
class Reporting:
    """The reporters. ``taints`` is None where none are wanted."""

    pods: PodConditionReporter
    node: NodeConditionReporter
    events: EventReporter
    taints: DeviceTaintReporter | None

    @classmethod
    def of(cls, settings: Settings, *, api: kube.KubeClient, pods: PodWatch, metrics: Metrics, parts: Parts) -> Self:
        """Make them all."""
        name = settings.node_name
        taints = None
        if settings.device_taints:
            taints = DeviceTaintReporter(api=api, node_name=name, report=parts.reporter("device-taints"))
        return cls(
            pods=PodConditionReporter(
                api=api,
                look_up=pods.pods().get,
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
                on_outcome=lambda outcome, count: metrics.announcements.labels(outcome.value).inc(count),
            ),
            taints=taints,
        )

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what must run for ever, by name."""
        works = {
            "pod-conditions": self.pods.run(),
            "node-condition": self.node.run(),
            "events": self.events.run(),
        }
        if self.taints is not None:
            works["device-taints"] = self.taints.run()
        return works
