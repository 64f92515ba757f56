"""The meaning of runtimes' errors. The details are the messages of gRPC core, containerd and CRI-O."""

import grpc
import grpc.aio
import pytest

from kubemend.agent.clients.cri import errors
from kubemend.agent.model.workloads import ContainerId

Code = grpc.StatusCode
CONNECT = "failed to connect to all addresses; last error: "


def mapped(code: grpc.StatusCode, details: str | None, *, call: str = "CreateContainer") -> errors.CriError:
    rpc = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    return errors.from_rpc(rpc, call=call, endpoint="/run/x.sock")


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (
            Code.UNAVAILABLE,
            CONNECT + "FAILED_PRECONDITION: unix:/run/x.sock: connect failed: addr: unix:/run/x.sock "
            "error: No such file or directory",
            errors.RuntimeUnavailable,
        ),
        (Code.UNAVAILABLE, "Socket closed", errors.RuntimeUnavailable),
        (Code.UNAVAILABLE, None, errors.RuntimeUnavailable),
        (Code.CANCELLED, "CANCELLED", errors.RuntimeUnavailable),
        (Code.CANCELLED, "context canceled", errors.CallFailed),
        (
            Code.UNAVAILABLE,
            CONNECT + "FAILED_PRECONDITION: unix:/run/x.sock: connect failed: addr: unix:/run/x.sock "
            "error: Permission denied",
            errors.PermissionDenied,
        ),
        (
            Code.UNAVAILABLE,
            CONNECT + "INTERNAL: unix:/run/x.sock: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, "
            "got frame type 80) (Trying to connect an http1.x server (HTTP status 400))",
            errors.NotCri,
        ),
        (
            Code.UNAVAILABLE,
            CONNECT + "UNKNOWN: unix:/run/x.sock: connection attempt timed out before receiving SETTINGS frame",
            errors.NotCri,
        ),
        (Code.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService", errors.NotCri),
        (Code.UNIMPLEMENTED, "unknown method CheckpointContainer", errors.Unsupported),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceeded),
        (Code.NOT_FOUND, 'failed to find sandbox id "x": not found', errors.NotFound),
        (Code.UNKNOWN, "specified sandbox not found: x: PodSandbox with ID starting with x not found", errors.NotFound),
        (Code.UNKNOWN, "failed to create containerd task: no space left on device", errors.CallFailed),
        (
            Code.UNKNOWN,
            'failed to set removing state for container "1": container is in starting state, can\'t be removed',
            errors.ContainerBusy,
        ),
        (
            Code.UNKNOWN,
            'failed to set removing state for container "1": container is already in removing state',
            errors.ContainerBusy,
        ),
        (Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max", errors.CallFailed),
    ],
)
def test_failed_call_maps_to_its_error(code: grpc.StatusCode, details: str | None, kind: type[errors.CriError]) -> None:
    error = mapped(code, details)

    assert type(error) is kind
    assert "/run/x.sock" in str(error)
    assert "\n" not in str(error)


def test_service_without_version_is_not_cri() -> None:
    assert isinstance(mapped(Code.UNIMPLEMENTED, "Method not found!", call="Version"), errors.NotCri)


@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.UNKNOWN, Code.ALREADY_EXISTS])
def test_containerd_reserved_name_has_its_holder(code: grpc.StatusCode) -> None:
    error = mapped(
        code,
        'failed to reserve container name "m_p_default_u1_0"; check if another CreateContainer request is in progress: '
        'name "m_p_default_u1_0" is reserved for "2b49ff4c"',
    )

    assert isinstance(error, errors.NameReserved)
    assert error.holder == ContainerId("2b49ff4c")


def test_crio_reserved_name_has_no_holder() -> None:
    error = mapped(Code.UNKNOWN, "error reserving ctr name k8s_m_p_default_u1_0 for id 77aa: name is reserved")

    assert isinstance(error, errors.NameReserved)
    assert error.holder is None


def test_missing_socket_error_is_one_line_with_hint() -> None:
    details = CONNECT + "FAILED_PRECONDITION: unix:/run/x.sock: connect failed: error: No such file or directory"

    assert str(mapped(Code.UNAVAILABLE, details, call="Version")) == (
        "Version: No such file or directory at /run/x.sock; start the container runtime, or set the endpoint to its "
        "CRI socket"
    )
