"""What can go wrong between us and the container runtime.

::

    CriError
     ├─ RuntimeUnavailable     nobody answers at the socket: try again
     ├─ PermissionDenied       the socket is there, but not for us
     ├─ NotCri                 something else answers at the socket, or not CRI v1
     ├─ DeadlineExceeded       the call took too long; whether it took effect is unknown
     ├─ NotFound               no such container or sandbox
     ├─ NameReserved           another container has this name and attempt (kubelet was faster)
     ├─ ContainerBusy          somebody else is starting or removing the container at this moment
     ├─ Unsupported            this runtime does not implement the call
     ├─ InvalidAnswer          the answer breaks the CRI contract
     └─ CallFailed             the runtime said no, for a reason of its own
"""
# ruff: noqa: N818 - the names read as what happened; the base class says that they are errors

import re

import grpc
import grpc.aio

from agent.model.workloads import ContainerId

# containerd internal/registrar: `name "m_p_ns_uid_0" is reserved for "<container id>"`. The status code varies:
# FAILED_PRECONDITION in 2.1, UNKNOWN in 1.6 and 1.7.
_CONTAINERD_RESERVED = re.compile(r'is reserved for "(?P<holder>[^"]*)"')
# CRI-O internal/storage: `error reserving ctr name k8s_… for id <the new one's id>: name is reserved`.
_CRIO_RESERVED = "name is reserved"

# containerd internal/cri/server: setContainerStarting and setContainerRemoving, with status code UNKNOWN.
_CONTAINERD_BUSY = re.compile(r"container is (?:already )?in (?:starting|removing) state")

# How gRPC core words a peer that accepts connections but speaks no HTTP/2.
_NOT_HTTP2 = ("SETTINGS frame", "Failed parsing HTTP/2", "http1.x server")


class CriError(Exception):
    """A call to the runtime failed. ``what`` failed, ``where`` (the endpoint), and what would ``mend`` it."""

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what, where, mend)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.what}{at}{mend}"


class RuntimeUnavailable(CriError):
    """Nobody answers at the socket, or the connection broke. The call may be tried again."""


class PermissionDenied(CriError):
    """The socket is there, but this process may not use it."""


class NotCri(CriError):
    """Whatever answers at the socket is not a CRI v1 runtime service."""


class DeadlineExceeded(CriError):
    """The call did not end in time. Whether it took effect is unknown: look before doing it again."""


class NotFound(CriError):
    """The runtime does not know the container or sandbox."""


class NameReserved(CriError):
    """A container of the same name and attempt exists or is being created; usually kubelet's.

    ``holder`` is the id of that container where the runtime tells it (containerd does, CRI-O does not).
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "", holder: ContainerId | None = None) -> None:
        super().__init__(what, where=where, mend=mend)
        self.holder = holder


class ContainerBusy(CriError):
    """Somebody else, usually kubelet, is starting or removing the container. Look again in a moment."""


class Unsupported(CriError):
    """The runtime does not implement the call."""


class InvalidAnswer(CriError):
    """The runtime's answer breaks the CRI contract."""


class CallFailed(CriError):
    """The runtime refused or could not do what was asked; ``what`` carries its own words."""


def from_rpc(error: grpc.aio.AioRpcError, *, call: str, endpoint: str) -> CriError:
    """Return the error of ours that says what a failed ``call`` means. The caller raises it ``from error``."""
    code, details = error.code(), " ".join((error.details() or "").split())
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unreachable(details, call=call, endpoint=endpoint)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _unimplemented(details, call=call, endpoint=endpoint)
    if (reserved := _CONTAINERD_RESERVED.search(details)) is not None:
        return NameReserved(f"{call}: {details}", where=endpoint, holder=ContainerId(reserved["holder"]) or None)
    if details.endswith(_CRIO_RESERVED):
        return NameReserved(f"{call}: {details}", where=endpoint)
    if _CONTAINERD_BUSY.search(details) is not None:
        return ContainerBusy(f"{call}: {details}", where=endpoint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{call} took too long ({details})", where=endpoint, mend=_OVERLOADED)
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"{call}: {details}", where=endpoint)
    return CallFailed(f"{call}: {code.name}: {details}", where=endpoint)


_OVERLOADED = "the runtime hangs or is overloaded: see its log (journalctl -u containerd or crio)"


def _unreachable(details: str, *, call: str, endpoint: str) -> CriError:
    if "Permission denied" in details:
        mend = "run as root and mount the socket's directory from the host"
        return PermissionDenied(f"{call}: no permission to use the socket", where=endpoint, mend=mend)
    if any(phrase in details for phrase in _NOT_HTTP2):
        mend = "set the endpoint to the runtime's CRI socket"
        return NotCri(f"{call}: what answers there does not speak gRPC", where=endpoint, mend=mend)
    mend = "start the container runtime, or set the endpoint to its CRI socket"
    return RuntimeUnavailable(f"{call}: {_shortest(details)}", where=endpoint, mend=mend)


def _unimplemented(details: str, *, call: str, endpoint: str) -> CriError:
    # Every CRI runtime has Version: without it the service itself is missing (or only v1alpha2 is there).
    if call == "Version" or "unknown service" in details:
        mend = "set the endpoint to the runtime's CRI socket; containerd needs 1.6 or newer and its cri plugin enabled"
        return NotCri(f"{call}: the service there is not CRI v1 ({details})", where=endpoint, mend=mend)
    return Unsupported(f"{call}: the runtime does not implement it ({details})", where=endpoint)


def _shortest(details: str) -> str:
    """Keep of gRPC's nested connection report the last cause, such as ``No such file or directory``."""
    return details.rpartition("error: ")[2] or "no answer"
