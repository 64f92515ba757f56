"""What the hub counts. Names and label values are part of the API (docs/operations.md)."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.hub.refusals import Reason


class HubMetrics:
    """One instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sessions = Gauge("kubemend_hub_sessions", "Agents that are connected.", registry=registry)
        self.ended = Counter(
            "kubemend_hub_sessions_ended", "Sessions that the hub has ended, by reason.", ["reason"], registry=registry
        )
        self._refused = Counter(
            "kubemend_hub_refused", "Streams and messages that were refused, by reason.", ["reason"], registry=registry
        )
        for reason in Reason:
            self._refused.labels(reason.value)

    def refused(self, reason: Reason, *, times: int = 1) -> None:
        """Count a refusal."""
        self._refused.labels(reason.value).inc(times)
