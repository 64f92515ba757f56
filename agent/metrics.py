"""Define the agent's metrics in one registry that the app serves. Names are part of the API (docs/operations.md)."""

import contextlib
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.restart import process
from kubemend.common import contained, process_metrics
from kubemend.common.components import ComponentState

_STEPS = (0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
_FAST = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """All metrics of the process (one instance). Counters count; gauges show the current state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        registry.register(process_metrics.ContainedFailures(contained.OF_AGENT))
        self.findings = Counter(
            "kubemend_findings", "Findings by source, kind and code.", ["source", "kind", "code"], registry=registry
        )
        self.findings_last_seen = Gauge(
            "kubemend_finding_last_timestamp_seconds",
            "Unix time of the last finding of that kind on that device.",
            ["device", "kind", "code"],
            registry=registry,
        )
        self.device_verdict = Gauge(
            "kubemend_device_verdict",
            "1 for the verdict that the device has now, 0 for the others.",
            ["device", "verdict"],
            registry=registry,
        )
        self.heartbeat_age = Gauge(
            "kubemend_heartbeat_age_seconds",
            "Seconds since a container last touched its heartbeat file, as far as the agent watched it without a gap.",
            ["namespace", "pod", "container"],
            registry=registry,
        )
        self.restarts = Counter(
            "kubemend_restarts",
            "Restarts that were started, by strategy, cause and result.",
            ["strategy", "cause", "result"],
            registry=registry,
        )
        self.restart_phase = Histogram(
            "kubemend_restart_phase_seconds",
            "Duration of each phase of a restart; fault_to_running is from the fault to the new process.",
            ["strategy", "phase"],
            buckets=_FAST,
            registry=registry,
        )
        self.next_step = Histogram(
            "kubemend_restart_next_step_seconds",
            "Time to the first touch of the heartbeat file after a restart, from its cause (fault) or its end (start).",
            ["strategy", "since"],
            buckets=_STEPS,
            registry=registry,
        )
        self.proofs = Counter(
            "kubemend_restart_device_proofs",
            "Proofs of GPUs between kill and release (--proof-timeout), by result and reason.",
            ["result", "reason"],
            registry=registry,
        )
        self.launcher_spare = Gauge(
            "kubemend_launcher_spare",
            "1 for the state that the spare of a container's launcher has now (none, importing, ready).",
            ["namespace", "pod", "container", "state"],
            registry=registry,
        )
        self.launcher_spare_memory = Gauge(
            "kubemend_launcher_spare_memory_bytes",
            "Resident memory of the spare of a container's launcher when its state last changed; 0: none, or unknown.",
            ["namespace", "pod", "container"],
            registry=registry,
        )
        self.caches = Counter(
            "kubemend_cache_emptyings",
            "Compile caches to empty because their containers failed early twice in a row, by result.",
            ["result"],
            registry=registry,
        )
        self.round_members = Counter(
            "kubemend_round_members",
            "Final phases of members of gang rounds on this node, by phase.",
            ["phase"],
            registry=registry,
        )
        self.round_phase = Histogram(
            "kubemend_round_phase_seconds",
            "Duration of each phase of a member's round, from its order to its release.",
            ["phase"],
            buckets=_FAST,
            registry=registry,
        )
        self.round_slip = Histogram(
            "kubemend_round_unheld_seconds",
            "Longest time for which a new process may have run in a member of a round before it was held.",
            buckets=(0.0, 0.001, 0.0025, *_FAST),
            registry=registry,
        )
        self.round_held = Gauge(
            "kubemend_round_held", "Containers that are held now for gang rounds.", registry=registry
        )
        self.decisions = Counter(
            "kubemend_restart_decisions",
            "Decisions about restarts, by verb and reason.",
            ["verb", "reason"],
            registry=registry,
        )
        self.part_ready = Gauge(
            "kubemend_component_ready",
            "1 while that component of the agent works, or is not needed.",
            ["part"],
            registry=registry,
        )
        self.kernel_log_read = Counter(
            "kubemend_kernel_log_records_read", "Kernel log records that were read.", registry=registry
        )
        self.kernel_log_lost = Counter(
            "kubemend_kernel_log_records_lost",
            "Kernel log records that were overwritten before they were read.",
            registry=registry,
        )
        self.kernel_log_malformed = Counter(
            "kubemend_kernel_log_records_malformed", "Kernel log records that could not be parsed.", registry=registry
        )
        self.netlink_overflows = Counter(
            "kubemend_netlink_overflows",
            "Times the kernel dropped netlink messages before they were read; the agent then lists everything again.",
            ["channel"],
            registry=registry,
        )
        self.findings_lost = Counter(
            "kubemend_findings_lost", "Findings dropped because the engine could not keep up.", registry=registry
        )
        self.findings_damped = Counter(
            "kubemend_findings_deduplicated",
            "Duplicate findings (within one second) suppressed while the first one is handled.",
            ["kind"],
            registry=registry,
        )
        self.condition_patches = Counter(
            "kubemend_condition_patches", "Patches of pod conditions, by result.", ["result"], registry=registry
        )
        self.node_condition_patches = Counter(
            "kubemend_node_condition_patches",
            "Patches of the node's condition, by result.",
            ["result"],
            registry=registry,
        )
        self.bare_pods = Gauge(
            "kubemend_pods_not_kept",
            "Pods that are too large to keep: only their identity is known, and they cannot be restarted.",
            registry=registry,
        )
        self.health_checks = Counter(
            "kubemend_health_checks",
            "Health checks that pods asked for (--health-check-socket), by result; also connections that were refused.",
            ["result"],
            registry=registry,
        )
        self.events = Counter(
            "kubemend_events",
            "Kubernetes Events to record, by result.",
            ["result"],
            registry=registry,
        )

    def show_devices(self, verdicts: Iterable[Verdict]) -> None:
        """Show the verdicts of these devices only: others are gone, or have been renamed."""
        self.device_verdict.clear()
        for verdict in verdicts:
            for health in Health:
                self.device_verdict.labels(verdict.device, health.value).set(health is verdict.health)

    def show_part(self, name: str, state: ComponentState) -> None:
        """Show the state of a component of the agent (``common.components.ComponentRegistry``)."""
        self.part_ready.labels(name).set(state.is_well)

    def show_spare(self, namespace: str, pod: str, container: str, *, launcher: process.Launcher | None) -> None:
        """Show the spare of a container's launcher; None: the container has no launcher, or it does not answer."""
        labels = namespace, pod, container
        if launcher is None:
            with contextlib.suppress(KeyError):  # the container has no launcher: nothing was shown
                self.launcher_spare_memory.remove(*labels)
                for each in process.Spare:
                    self.launcher_spare.remove(*labels, each.value)
            return
        for each in process.Spare:
            self.launcher_spare.labels(*labels, each.value).set(each is launcher.spare_state)
        self.launcher_spare_memory.labels(*labels).set(launcher.spare_memory)

    def watch(self, collector: Collector) -> None:
        """Serve a collector that computes its metrics on each scrape."""
        self._registry.register(collector)
