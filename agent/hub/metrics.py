"""Define the metrics of the hub client. They exist only if a hub is set."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

IN: Final = "in"
OUT: Final = "out"


class HubMetrics:
    """The metrics of the process (one instance)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "kubemend_hub_connected", "1 while the controller's hub has welcomed this agent.", registry=registry
        )
        self.messages = Counter(
            "kubemend_hub_messages",
            "Messages to (out) and from (in) the hub, by body type.",
            ["direction", "body"],
            registry=registry,
        )
        self.ignored = Counter(
            "kubemend_hub_ignored",
            "Messages from the hub that were ignored, by reason.",
            ["reason"],
            registry=registry,
        )
        self.answers = Counter(
            "kubemend_hub_fault_answers",
            "Faults reported to the hub, by kind and answer; Unanswered: no answer in time.",
            ["kind", "answer"],
            registry=registry,
        )
