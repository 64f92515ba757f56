"""Helm installs, upgrades and removes the chart on a real API server, which checks every object."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from hack.chart.__main__ import CHART
from hack.devnode import apiserver, kubernetes
from tests import helm
from tests.unit.daemonset import kubectl

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

NAMESPACE: Final = "gpu-ops"
WITHOUT_OTHERS: Final = ("monitoring", "gke")
"""Components that need resources, or admission, that this API server does not have."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.KubeApiServer]:
    if reason := kubernetes.missing("etcd", "kube-apiserver", "kubectl"):
        pytest.fail(reason, pytrace=False)
    made = apiserver.KubeApiServer(tmp_path_factory.mktemp("helm"))
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(made.start())
        yield made
    finally:
        loop.run_until_complete(made.end())
        loop.close()


def run(server: apiserver.KubeApiServer, *arguments: str, values: dict[str, Any] | None = None) -> None:
    """Run Helm on the server; it must succeed."""
    answer = helm.run(*arguments, f"--kubeconfig={server.kubeconfig}", f"--namespace={NAMESPACE}", values=values)
    assert answer.returncode == 0, answer.stderr


def found(server: apiserver.KubeApiServer, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind with kubemend's label."""
    options = ("--all-namespaces", "--selector=app.kubernetes.io/name=kubemend", "--output=yaml")
    text = kubectl.run(f"--kubeconfig={server.kubeconfig}", "get", kind, *options)
    items: list[dict[str, Any]] = yaml.safe_load(text)["items"]
    return items


def test_release_is_installed_upgraded_and_removed(server: apiserver.KubeApiServer) -> None:
    switches = yaml.safe_load((CHART / "values.yaml").read_text())["components"]
    everything = {name: name not in WITHOUT_OTHERS for name in switches}
    run(server, "install", "kubemend", str(CHART), "--create-namespace", values={"components": everything})
    (agents,) = found(server, "daemonsets")
    assert agents["metadata"]["namespace"] == NAMESPACE
    assert {each["metadata"]["namespace"] for each in found(server, "deployments")} == {NAMESPACE}
    assert len(found(server, "validatingadmissionpolicies")) > 5

    run(
        server, "upgrade", "kubemend", str(CHART), values={"image": {"tag": "0.1.0-next"}, "agent": {"tolerations": []}}
    )
    (agents,) = found(server, "daemonsets")
    pod = agents["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "kubemend:0.1.0-next"
    assert "tolerations" not in pod
    assert [each["metadata"]["name"] for each in found(server, "mutatingadmissionpolicies")] == []

    run(server, "uninstall", "kubemend")
    for kind in ("daemonsets", "deployments", "clusterroles", "validatingadmissionpolicies"):
        assert found(server, kind) == []
    kept = {each["metadata"]["name"] for each in found(server, "customresourcedefinitions")}
    assert "restarts.restarts.kubemend.io" in kept
