"""Define the errors of calls to the container runtime.

::

    CriError
     ├─ RuntimeUnavailable     the socket does not answer: try again
     ├─ PermissionDenied       the socket exists, but this process may not use it
     ├─ NotCri                 the program behind the socket is not a CRI v1 runtime
     ├─ DeadlineExceeded       the call took too long; whether it took effect is unknown
     ├─ NotFound               no such container or sandbox
     ├─ NameReserved           another container has this name and attempt (kubelet was faster)
     ├─ ContainerBusy          another client is starting or removing the container at this moment
     ├─ Unsupported            this runtime does not implement the call
     ├─ AnswerTooLong          the call was carried out, but its answer exceeds the size limit
     ├─ InvalidAnswer          the answer breaks the CRI contract
     └─ CallFailed             the runtime refused, for a reason of its own
"""
# ruff: noqa: N818 - the names describe the event; the base class marks them as errors

import re

import grpc
import grpc.aio

from kubemend.agent.model.workloads import ContainerId

# containerd internal/registrar: `name "m_p_ns_uid_0" is reserved for "<container id>"`. The status code varies:
# FAILED_PRECONDITION in 2.1, UNKNOWN in 1.6 and 1.7.
_CONTAINERD_RESERVED = re.compile(r'is reserved for "(?P<holder>[^"]*)"')
# CRI-O internal/storage: `error reserving ctr name k8s_… for id <the new one's id>: name is reserved`.
_CRIO_RESERVED = "name is reserved"
# CRI-O server: CreateContainer in a sandbox that does not exist, with status code UNKNOWN.
_CRIO_NO_SANDBOX = "specified sandbox not found"

# containerd internal/cri/server: setContainerStarting and setContainerRemoving, with status code UNKNOWN.
_CONTAINERD_BUSY = re.compile(r"container is (?:already )?in (?:starting|removing) state")

# gRPC core's message for an answer that is longer than the channel allows (grpc.max_receive_message_length).
_TOO_LONG = "Received message larger than max"

# gRPC core's messages for a peer that accepts connections but does not support HTTP/2.
_NOT_HTTP2 = ("SETTINGS frame", "Failed parsing HTTP/2", "http1.x server")


class CriError(Exception):
    """A call to the runtime failed: ``what`` failed, ``where`` (the endpoint), and a ``hint`` how to fix it."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.what}{at}{hint}"


class RuntimeUnavailable(CriError):
    """The socket does not answer, or the connection broke. The call may be tried again."""


class PermissionDenied(CriError):
    """The socket exists, but this process may not use it."""


class NotCri(CriError):
    """The program behind the socket is not a CRI v1 runtime service."""


class DeadlineExceeded(CriError):
    """The call did not end in time. Whether it took effect is unknown: list before repeating it."""


class NotFound(CriError):
    """The runtime does not know the container or sandbox."""


class NameReserved(CriError):
    """A container of the same name and attempt exists or is being created; usually kubelet's.

    ``holder`` is the id of that container if the runtime reports it (containerd does, CRI-O does not).
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", holder: ContainerId | None = None) -> None:
        super().__init__(what, where=where, hint=hint)
        self.holder = holder


class ContainerBusy(CriError):
    """Another client, usually kubelet, is starting or removing the container. List again in a moment."""


class Unsupported(CriError):
    """The runtime does not implement the call."""


class AnswerTooLong(CriError):
    """The call was carried out, but its answer exceeds the size limit."""


class InvalidAnswer(CriError):
    """The runtime's answer breaks the CRI contract."""


class CallFailed(CriError):
    """The runtime refused or failed the call; ``what`` contains its own message."""


def from_rpc(error: grpc.aio.AioRpcError, *, call: str, endpoint: str) -> CriError:
    """Return the CriError for a failed ``call``. The caller raises it ``from error``."""
    code, details = error.code(), " ".join((error.details() or "").split())
    if code is grpc.StatusCode.UNAVAILABLE or (code is grpc.StatusCode.CANCELLED and details == _RESET):
        return _unreachable(details, call=call, endpoint=endpoint)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _unimplemented(details, call=call, endpoint=endpoint)
    if (reserved := _CONTAINERD_RESERVED.search(details)) is not None:
        return NameReserved(f"{call}: {details}", where=endpoint, holder=ContainerId(reserved["holder"]) or None)
    if details.endswith(_CRIO_RESERVED):
        return NameReserved(f"{call}: {details}", where=endpoint)
    if _CONTAINERD_BUSY.search(details) is not None:
        return ContainerBusy(f"{call}: {details}", where=endpoint)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LONG in details:
        return AnswerTooLong(f"{call}: {details}", where=endpoint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{call} took too long ({details})", where=endpoint, hint=_OVERLOADED)
    if code is grpc.StatusCode.NOT_FOUND or details.startswith(_CRIO_NO_SANDBOX):
        return NotFound(f"{call}: {details}", where=endpoint)
    return CallFailed(f"{call}: {code.name}: {details}", where=endpoint)


_RESET = "CANCELLED"
"""gRPC's own text: a server that ends has reset the stream, and no call was refused."""

_OVERLOADED = "the runtime hangs or is overloaded: see its log (journalctl -u containerd or crio)"


def _unreachable(details: str, *, call: str, endpoint: str) -> CriError:
    if "Permission denied" in details:
        hint = "run as root and mount the socket's directory from the host"
        return PermissionDenied(f"{call}: no permission to use the socket", where=endpoint, hint=hint)
    if any(phrase in details for phrase in _NOT_HTTP2):
        hint = "set the endpoint to the runtime's CRI socket"
        return NotCri(f"{call}: the program behind the socket does not support gRPC", where=endpoint, hint=hint)
    hint = "start the container runtime, or set the endpoint to its CRI socket"
    return RuntimeUnavailable(f"{call}: {_shortest(details)}", where=endpoint, hint=hint)


def _unimplemented(details: str, *, call: str, endpoint: str) -> CriError:
    # Every CRI runtime has Version: without it the service itself is missing (or only v1alpha2 is there).
    if call == "Version" or "unknown service" in details:
        hint = "set the endpoint to the runtime's CRI socket; containerd needs 1.6 or newer and its cri plugin enabled"
        return NotCri(f"{call}: the service behind the socket is not CRI v1 ({details})", where=endpoint, hint=hint)
    return Unsupported(f"{call}: the runtime does not implement it ({details})", where=endpoint)


def _shortest(details: str) -> str:
    """Return the last cause in gRPC's nested connection report, such as ``No such file or directory``."""
    return details.rpartition("error: ")[2] or "no answer"
