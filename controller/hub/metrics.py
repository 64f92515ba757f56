"""What the hub counts. Names and label values are part of the API (docs/operations.md)."""

import enum

from prometheus_client import CollectorRegistry, Counter, Gauge

from controller.hub.refusals import Reason


class ConnectionEnd(enum.Enum):
    """Why the hub closes a connection that is nobody's yet: label values, part of the API (docs/operations.md)."""

    CROWDED = "Crowded"
    """Its address has its share already, or there is no room."""
    DISPLACED = "Displaced"
    """There is no room, and its address has most of it."""
    SILENT = "Silent"
    """No stream on it has been accepted in time."""
    FAILED = "Failed"
    """This process has no files left, or gRPC takes no more."""


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
        self.connections = Gauge(
            "kubemend_hub_connections", "Connections to the hub, strangers' included.", registry=registry
        )
        self._connections_closed = Counter(
            "kubemend_hub_connections_refused",
            "Connections of peers that have not said who they are, which the hub has closed, by reason.",
            ["reason"],
            registry=registry,
        )
        for why in ConnectionEnd:
            self._connections_closed.labels(why.value)

    def refused(self, reason: Reason, *, times: int = 1) -> None:
        """Count a refusal."""
        self._refused.labels(reason.value).inc(times)

    def connection_ended(self, why: ConnectionEnd) -> None:
        """Count a connection that was not let in, or was ended."""
        self._connections_closed.labels(why.value).inc()
