"""Why the hub refuses a stream or a message: for metrics, for gRPC and as text."""

import enum

import grpc


class Reason(enum.Enum):
    """Label values of ``kubemend_hub_refused_total``: part of the API (docs/troubleshooting.md)."""

    STANDBY = "Standby"
    CROWDED = "Crowded"
    SILENT = "Silent"
    NO_TOKEN = "NoToken"  # noqa: S105 - a name
    BAD_TOKEN = "BadToken"  # noqa: S105 - a name
    REVIEW_FAILED = "ReviewFailed"
    WRONG_NODE = "WrongNode"
    OTHER_VERSION = "OtherVersion"
    MALFORMED = "Malformed"
    OVERSIZED = "Oversized"
    TOO_MANY = "TooMany"
    TOO_OFTEN = "TooOften"
    REPLAYED = "Replayed"
    FOREIGN_POD = "ForeignPod"
    UNKNOWN_POD = "UnknownPod"
    UNKNOWN_MESSAGE = "UnknownMessage"
    INTERNAL = "Internal"


_CODES = {
    Reason.STANDBY: grpc.StatusCode.UNAVAILABLE,
    Reason.REVIEW_FAILED: grpc.StatusCode.UNAVAILABLE,
    Reason.CROWDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.OVERSIZED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.TOO_OFTEN: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.SILENT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.NO_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Reason.BAD_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Reason.WRONG_NODE: grpc.StatusCode.PERMISSION_DENIED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


class RefusedError(Exception):
    """A stream or a message is refused. The text has the problem and, if there is one, a hint, in one line."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(what)
        self.reason = reason

    @property
    def code(self) -> grpc.StatusCode:
        """Return the status that the stream ends with."""
        return _CODES.get(self.reason, grpc.StatusCode.INVALID_ARGUMENT)

    @property
    def ends_stream(self) -> bool:
        """Return whether the stream ends, too.

        Unknown messages of a newer agent and pods that are not the node's do not end it.
        """
        return self.reason not in _PASSED_OVER


_PASSED_OVER = frozenset({Reason.UNKNOWN_MESSAGE, Reason.FOREIGN_POD, Reason.UNKNOWN_POD, Reason.REPLAYED})
