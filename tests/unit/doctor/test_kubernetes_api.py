"""The doctor's checks of the API server, the node and its kubelet."""

from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.doctor import kubernetes_api
from kubemend.agent.doctor.checks import Result
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.control_plane import Tenant


async def add_node(api: kube.KubeClient, name: str, status: dict[str, Any]) -> None:
    await api.create(paths.NODES, {"metadata": {"name": name}})
    await api.patch_status(f"{paths.NODES}/{name}", {"status": status})


async def test_running_server_is_named_with_its_version(api: kube.KubeClient) -> None:
    (check,) = await kubernetes_api.server(api)

    assert check.result is Result.OK
    assert "v1.36." in check.what


async def test_stopped_server_fails(tenant: Tenant, api: kube.KubeClient) -> None:
    await tenant.server.stop()

    (check,) = await kubernetes_api.server(api)

    assert check.result is Result.FAIL
    assert "is the API server up" in check.hint


async def test_missing_kubeconfig_fails_and_is_named(tmp_path: Path) -> None:
    async with kube.connect(kubeconfig=tmp_path / "none") as api:
        (check,) = await kubernetes_api.server(api)

    assert check.result is Result.FAIL
    assert str(tmp_path / "none") in check.what


async def test_current_node_needs_nothing(tenant: Tenant, api: kube.KubeClient) -> None:
    features = [kubernetes_api.RULES_FEATURE]
    await add_node(api, tenant.node, {"nodeInfo": {"kubeletVersion": "v1.36.2"}, "declaredFeatures": features})

    checks = await kubernetes_api.node(api, name=tenant.node)

    assert [check.name for check in checks] == list(kubernetes_api.NODE)
    assert {check.result for check in checks} == {Result.OK}


async def test_node_under_another_name_fails_with_flag(api: kube.KubeClient) -> None:
    checks = await kubernetes_api.node(api, name="elsewhere")

    assert [check.result for check in checks] == [Result.FAIL, Result.UNKNOWN, Result.UNKNOWN]
    assert "elsewhere" in checks[0].what
    assert "--node-name" in checks[0].hint


async def test_forbidden_node_is_unknown_with_missing_right(tenant: Tenant, api: kube.KubeClient) -> None:
    tenant.server.fail_next(1, status=403)

    checks = await kubernetes_api.node(api, name="n")

    assert [check.result for check in checks] == [Result.UNKNOWN] * 3
    assert '"get" on resource "nodes"' in checks[0].hint


async def test_stopped_server_makes_node_unknown_with_pointer(tenant: Tenant, api: kube.KubeClient) -> None:
    await tenant.server.stop()

    checks = await kubernetes_api.node(api, name="n")

    assert [check.result for check in checks] == [Result.UNKNOWN] * 3
    assert checks[0].hint == "see kubernetes-api"


@pytest.mark.parametrize(
    ("version", "result"),
    [
        ("v1.36.2", Result.OK),
        ("v1.35.0-alpha.1", Result.OK),
        ("v2.0.0", Result.OK),
        ("v1.34.9+k3s1", Result.WARN),
        ("v1.9.1", Result.WARN),
        ("", Result.UNKNOWN),
        ("devel", Result.UNKNOWN),
    ],
)
def test_kubelet_before_1_35_freezes_statuses(version: str, result: Result) -> None:
    check = kubernetes_api.kubelet_check(version)

    assert check.result is result
    assert ("freezes the status" in check.what) == (result is Result.WARN)


@pytest.mark.parametrize("status", [{}, {"declaredFeatures": None}, {"declaredFeatures": ["Other"]}])
def test_kubelet_without_restart_rules_is_not_a_fault(status: dict[str, Any]) -> None:
    assert kubernetes_api.rules_check(status).result is Result.NOT_NEEDED
