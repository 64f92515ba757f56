"""The doctor's check of kubelet's pod-resources socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from kubemend.agent.doctor import kubernetes_api
from kubemend.agent.doctor.checks import Result
from tests.fakes.podresources_server import PodResourcesServer, pod


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[PodResourcesServer]:
    """A kubelet with two pods, of which one holds a GPU."""
    async with PodResourcesServer(str(tmp_path / "kubelet.sock")) as server:
        server.pods = [pod("p", devices=[("nvidia.com/gpu", "GPU-a")]), pod("idle")]
        yield server


async def test_kubelet_that_lists_holders_is_ok(kubelet: PodResourcesServer) -> None:
    (check,) = await kubernetes_api.pod_resources(kubelet.endpoint)

    assert check.result is Result.OK
    assert "one pod at a time" in check.what
    assert "1 containers hold devices" in check.what


@pytest.mark.parametrize(
    "refusal",
    [
        (grpc.StatusCode.UNIMPLEMENTED, "unknown method Get"),
        (grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled"),
    ],
)
async def test_kubelet_without_get_is_ok(kubelet: PodResourcesServer, refusal: tuple[grpc.StatusCode, str]) -> None:
    kubelet.get_refusal = refusal

    (check,) = await kubernetes_api.pod_resources(kubelet.endpoint)

    assert check.result is Result.OK
    assert "it has no Get" in check.what


async def test_missing_socket_fails_with_mount_hint(tmp_path: Path) -> None:
    (check,) = await kubernetes_api.pod_resources(str(tmp_path / "none.sock"))

    assert check.result is Result.FAIL
    assert str(tmp_path) in check.hint


async def test_kubelet_that_refuses_fails(kubelet: PodResourcesServer) -> None:
    kubelet.refusal = (grpc.StatusCode.INTERNAL, "no checkpoint")

    (check,) = await kubernetes_api.pod_resources(kubelet.endpoint)

    assert check.result is Result.FAIL
    assert "no checkpoint" in check.what
