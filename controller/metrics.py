"""The controller's metrics, in one registry that the app serves. Names are part of the API (docs/operations.md)."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kubemend.common import contained, process_metrics
from kubemend.common.components import ComponentState
from kubemend.controller.rounds.states import Phase

ROUND_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds."""


class Metrics:
    """The controller's metrics; one instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(process_metrics.ContainedFailures(contained.OF_CONTROLLER))
        self.leads = Gauge("kubemend_controller_leads", "1 while this replica leads.", registry=registry)
        self.part_ready = Gauge(
            "kubemend_component_ready",
            "1 while that component of the controller works, or is not needed.",
            ["part"],
            registry=registry,
        )
        self.faults = Counter(
            "kubemend_gang_faults",
            "Faults reported by agents, by kind and answer.",
            ["kind", "answer"],
            registry=registry,
        )
        self.decisions = Counter(
            "kubemend_gang_decisions",
            "Decisions about gangs, by kind and reason.",
            ["kind", "reason"],
            registry=registry,
        )
        self.rounds = Counter(
            "kubemend_rounds",
            "Ended rounds, by phase (Done, Degraded, Failed).",
            ["phase"],
            registry=registry,
        )
        self.rounds_active = Gauge("kubemend_rounds_active", "Rounds under way.", registry=registry)
        self.round_seconds = Histogram(
            "kubemend_round_seconds",
            "Seconds from a round's fault to its end.",
            ["phase"],
            buckets=ROUND_BUCKETS,
            registry=registry,
        )
        self.round_steps = Histogram(
            "kubemend_round_step_seconds",
            "Seconds of each step of a round: decide, stop (until all old containers were dead) and release.",
            ["step"],
            buckets=ROUND_BUCKETS,
            registry=registry,
        )
        self.round_gpus = Counter(
            "kubemend_round_gpus",
            "GPUs of gangs whose rounds have ended, by phase. GPUs without measurements are not counted.",
            ["phase"],
            registry=registry,
        )
        self.round_gpu_seconds = Counter(
            "kubemend_round_gpu_seconds",
            "GPUs of gangs whose rounds have ended, times the seconds from the round's fault to its end, by phase.",
            ["phase"],
            registry=registry,
        )
        # series that alerts compare over time must exist from the start
        for phase in (each for each in Phase if each.is_final):
            for counter in (self.rounds, self.round_gpus, self.round_gpu_seconds):
                counter.labels(phase.value)
        self.round_traces = Counter(
            "kubemend_round_traces",
            "Traces of rounds, by result: exported, failed, or dropped because too many were queued.",
            ["result"],
            registry=registry,
        )
        self.not_durable = Counter(
            "kubemend_rounds_begun_without_record",
            "Rounds begun before their Restart object could be written.",
            registry=registry,
        )
        self.bare_members = Gauge(
            "kubemend_members_not_kept",
            "Members too large to keep more than their identity. Their gangs are not restarted.",
            registry=registry,
        )
        self.stragglers = Gauge(
            "kubemend_gang_stragglers",
            "Members persistently far below their gang's median.",
            ["namespace", "kind", "gang"],
            registry=registry,
        )

    def show_part(self, name: str, state: ComponentState) -> None:
        """Set the state of a component of the controller (``common.components.ComponentRegistry``)."""
        self.part_ready.labels(name).set(state.is_well)
