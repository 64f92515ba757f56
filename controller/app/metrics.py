"""The controller's metrics, in one registry that the app serves. Names are part of the API (docs/operations.md)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.parts import PartState

_FROM_MILLISECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """One instance per process; counters count, gauges show now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leads = Gauge("kubemend_controller_leads", "1 while this replica leads.", registry=registry)
        self.part_ready = Gauge(
            "kubemend_part_ready", "1 while that part of the controller works.", ["part"], registry=registry
        )
        self.faults = Counter(
            "kubemend_gang_faults",
            "Faults that agents told of, by kind and by what was answered.",
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
            "Rounds that have ended, by phase (Done, Degraded, Failed).",
            ["phase"],
            registry=registry,
        )
        self.rounds_active = Gauge("kubemend_rounds_active", "Rounds under way.", registry=registry)
        self.round_seconds = Histogram(
            "kubemend_round_seconds",
            "Seconds from a round's fault to its end.",
            ["phase"],
            buckets=_FROM_MILLISECONDS,
            registry=registry,
        )
        self.not_durable = Counter(
            "kubemend_rounds_begun_without_record",
            "Rounds that were begun before their Restart object could be written.",
            registry=registry,
        )
        self.defects = Counter(
            "kubemend_gang_defects",
            "Gangs that could not be decided about, and rounds that could not go on, for a defect of ours: must be 0.",
            registry=registry,
        )
        self.stragglers = Gauge(
            "kubemend_gang_stragglers",
            "Members that are persistently far below their gang's median.",
            ["namespace", "kind", "gang"],
            registry=registry,
        )

    def show_part(self, name: str, state: PartState) -> None:
        """Show how a part of the controller does (``common.parts.Parts``)."""
        self.part_ready.labels(name).set(state is PartState.READY)
