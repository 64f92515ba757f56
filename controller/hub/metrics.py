"""Metrics of the hub. Names and label values are part of the API (docs/operations.md)."""

import enum

from prometheus_client import CollectorRegistry, Counter, Gauge

from kubemend.controller.hub.refusals import Reason


class ConnectionEnd(enum.Enum):
    """Why the hub closes an unauthenticated connection: label values, part of the API (docs/operations.md)."""

    CROWDED = "Crowded"
    """Its address has used up its share, or there is no room."""
    DISPLACED = "Displaced"
    """There is no room, and its address has the most connections."""
    SILENT = "Silent"
    """No stream on it was accepted in time."""
    FAILED = "Failed"
    """This process has no file descriptors left, or gRPC accepts no more."""


class HubMetrics:
    """The hub's metrics; one instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sessions = Gauge("kubemend_hub_sessions", "Connected agents.", registry=registry)
        self.ended = Counter(
            "kubemend_hub_sessions_ended", "Sessions ended by the hub, by reason.", ["reason"], registry=registry
        )
        self._refused = Counter(
            "kubemend_hub_refused", "Streams and messages refused, by reason.", ["reason"], registry=registry
        )
        for reason in Reason:
            self._refused.labels(reason.value)
        self.connections = Gauge(
            "kubemend_hub_connections", "Connections to the hub, unauthenticated ones included.", registry=registry
        )
        self._connections_closed = Counter(
            "kubemend_hub_connections_refused",
            "Unauthenticated connections closed by the hub, by reason.",
            ["reason"],
            registry=registry,
        )
        for end in ConnectionEnd:
            self._connections_closed.labels(end.value)

    def refused(self, reason: Reason, *, times: int = 1) -> None:
        """Count a refusal."""
        self._refused.labels(reason.value).inc(times)

    def connection_ended(self, reason: ConnectionEnd) -> None:
        """Count a connection that was refused or closed."""
        self._connections_closed.labels(reason.value).inc()
