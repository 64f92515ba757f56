"""What is counted of the hub. Made only where one is set."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

IN: Final = "in"
OUT: Final = "out"


class HubMetrics:
    """One instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "kubemend_hub_connected", "1 while the controller's hub has welcomed this agent.", registry=registry
        )
        self.messages = Counter(
            "kubemend_hub_messages",
            "Messages to (out) and from (in) the hub, by what they are.",
            ["direction", "body"],
            registry=registry,
        )
        self.ignored = Counter(
            "kubemend_hub_ignored",
            "Messages from the hub that were not obeyed, by reason.",
            ["reason"],
            registry=registry,
        )
        self.answers = Counter(
            "kubemend_hub_fault_answers",
            "What became of faults that the hub was told of, by kind and answer; Unanswered: none came in time.",
            ["kind", "answer"],
            registry=registry,
        )
