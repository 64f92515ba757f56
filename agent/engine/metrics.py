"""The agent's metrics, in one registry that the app serves. Names are part of the API (docs/operations.md)."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from agent.model.verdicts import Health
from common import contained, process_metrics
from common.parts import PartState

_FAST = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One instance per process; counters count, gauges show now, nothing is sticky."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        registry.register(process_metrics.ContainedFailures(contained.OF_AGENT))
        self.findings = Counter(
            "kubemend_findings", "Findings by source, kind and code.", ["source", "kind", "code"], registry=registry
        )
        self.findings_last_seen = Gauge(
            "kubemend_finding_last_seen_seconds",
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
            "Seconds since a container has touched its heartbeat file, as far as we could watch it without a gap.",
            ["namespace", "pod", "container"],
            registry=registry,
        )
        self.restarts = Counter(
            "kubemend_restarts",
            "Restarts that were begun, by strategy, cause and result.",
            ["strategy", "reason", "result"],
            registry=registry,
        )
        self.restart_phase = Histogram(
            "kubemend_restart_phase_seconds",
            "Duration of each phase of a restart; fault_to_running is from the fault to the new process.",
            ["strategy", "phase"],
            buckets=_FAST,
            registry=registry,
        )
        self.round_members = Counter(
            "kubemend_round_members",
            "Where members of gangs' rounds on this node have come to stand, by phase.",
            ["phase"],
            registry=registry,
        )
        self.round_phase = Histogram(
            "kubemend_round_phase_seconds",
            "Duration of each phase of a member's round, from its order until it is let go.",
            ["phase"],
            buckets=_FAST,
            registry=registry,
        )
        self.round_slip = Histogram(
            "kubemend_round_slip_seconds",
            "For how long at most something new ran in a member of a round before it was held.",
            buckets=(0.0, 0.001, 0.0025, *_FAST),
            registry=registry,
        )
        self.round_held = Gauge(
            "kubemend_round_held", "Containers that stand still now for gangs' rounds.", registry=registry
        )
        self.decisions = Counter(
            "kubemend_restart_decisions",
            "Decisions about restarts, by verb and reason.",
            ["verb", "reason"],
            registry=registry,
        )
        self.part_ready = Gauge(
            "kubemend_part_ready", "1 while that part of the agent works.", ["part"], registry=registry
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
            "Times the kernel dropped netlink messages before they were read; all is listed again then.",
            ["channel"],
            registry=registry,
        )
        self.findings_lost = Counter(
            "kubemend_findings_lost", "Findings dropped because the engine could not keep up.", registry=registry
        )
        self.findings_damped = Counter(
            "kubemend_findings_damped",
            "Findings that say once more, within a second, what is being acted on: counted, and not acted on again.",
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
            "Pods of which so much is written down that only who they are is kept: they cannot be restarted.",
            registry=registry,
        )
        self.announcements = Counter(
            "kubemend_announcements",
            "What was to be told in Kubernetes Events, by what became of it.",
            ["result"],
            registry=registry,
        )

    def forget(self, devices: Iterable[str]) -> None:
        """Show no verdict any more of devices that are gone, or have another name."""
        for device in devices:
            for health in Health:
                self.device_verdict.remove(device, health.value)

    def show_part(self, name: str, state: PartState) -> None:
        """Show how a part of the agent does (``common.parts.Parts``)."""
        self.part_ready.labels(name).set(state is PartState.READY)

    def watch(self, collector: Collector) -> None:
        """Serve what another part works out when it is asked for."""
        self._registry.register(collector)
