"""The manifests agree with each other."""

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from kubemend.agent.settings import Settings
from kubemend.controller.certificates import keeper, stored
from kubemend.controller.hub import identity
from tests.unit.daemonset import controller_manifests, manifests

every_variant = pytest.mark.parametrize("variant", manifests.VARIANTS, ids="+".join)

SELF_CONTAINED = (manifests.BASE, manifests.ADMISSION, *manifests.COMPONENTS.values())
"""Directories that name no others."""

PLACES_WITH_MOUNTS = {"/run/containerd", "/run/crio", "/var/lib/kubelet/pods", "/host/run/nvidia"}
"""Directories with mounts of others below: file systems of containers, volumes of pods, the root of a driver's
container.
"""


@pytest.mark.parametrize("directory", SELF_CONTAINED, ids=lambda path: path.name)
def test_every_file_is_named_by_its_kustomization(directory: Path) -> None:
    assert sorted(manifests.listed(directory)) == sorted(
        path.name for path in directory.iterdir() if path.name != "kustomization.yaml"
    )


@every_variant
def test_every_object_exists_once_and_in_our_namespace(variant: Sequence[str]) -> None:
    objects = manifests.render(variant)
    identities = [manifests.identity(obj) for obj in objects]
    assert len(set(identities)) == len(identities)
    assert {namespace for kind, namespace, _ in identities if kind not in manifests.CLUSTER_WIDE} == {"kubemend"}
    assert manifests.kustomization(manifests.BASE)["namespace"] == manifests.one("Namespace")["metadata"]["name"]


def test_the_namespace_admits_privileged_pods() -> None:
    labels = manifests.one("Namespace")["metadata"]["labels"]
    assert manifests.agent()["securityContext"]["privileged"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_the_image_has_the_version_of_the_package() -> None:
    project = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert manifests.agent()["image"] == f"kubemend:{project['version']}"
    assert manifests.kustomization(manifests.BASE)["images"] == [{"name": "kubemend", "newName": "kubemend"}]


def test_the_daemon_set_selects_its_own_pods() -> None:
    spec = manifests.one("DaemonSet")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    annotations = spec["template"]["metadata"]["annotations"]
    assert annotations["kubectl.kubernetes.io/default-container"] == manifests.agent()["name"]


def test_the_monitor_finds_the_pods_and_their_port() -> None:
    monitor = manifests.one("PodMonitor", ["monitoring"])["spec"]
    template = manifests.one("DaemonSet", ["monitoring"])["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in manifests.agent(["monitoring"])["ports"]]


def test_the_quota_covers_the_priorities_of_agents_and_controller() -> None:
    (scope,) = manifests.one("ResourceQuota", ["gke"])["spec"]["scopeSelector"]["matchExpressions"]
    pods = [manifests.pod(["gke"]), controller_manifests.one("Deployment")["spec"]["template"]["spec"]]
    assert scope["values"] == [pod["priorityClassName"] for pod in pods]


@every_variant
def test_every_volume_is_mounted_and_every_mount_has_its_volume(variant: Sequence[str]) -> None:
    volumes = [volume["name"] for volume in manifests.pod(variant)["volumes"]]
    mounts = manifests.agent(variant)["volumeMounts"]
    assert sorted(mount["name"] for mount in mounts) == sorted(volumes)
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@every_variant
def test_paths_inside_are_those_of_the_host(variant: Sequence[str]) -> None:
    of_host = [volume for volume in manifests.pod(variant)["volumes"] if "hostPath" in volume]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in of_host}
    mounts = [mount for mount in manifests.agent(variant)["volumeMounts"] if mount["name"] in paths]
    assert len(mounts) == len(paths)
    for mount in mounts:
        assert mount["mountPath"].removeprefix("/host") == paths[mount["name"]]


def test_hub_has_the_address_that_the_agent_uses() -> None:
    settings = {field.name: field.default for field in dataclasses.fields(Settings)}
    mounts = {mount["name"]: mount["mountPath"] for mount in manifests.agent(["gangs"])["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in manifests.pod(["gangs"])["volumes"]}
    (source,) = volumes["hub-token"]["projected"]["sources"]
    assert settings["hub_ca"] == Path(mounts["hub-ca"], stored.CA)
    assert settings["hub_token"] == Path(mounts["hub-token"], source["serviceAccountToken"]["path"])
    assert source["serviceAccountToken"]["audience"] == identity.AUDIENCE
    assert volumes["hub-ca"]["configMap"]["name"] == keeper.CONFIG_MAP
    namespace = manifests.kustomization(manifests.BASE)["namespace"]
    assert settings["hub_name"] == f"{keeper.SERVICE}.{namespace}.svc"
    ports = controller_manifests.one("Service")["spec"]["ports"]
    (port,) = [each["port"] for each in ports if each["name"] == "hub"]
    (hub,) = [each["value"] for each in manifests.agent(["gangs"])["env"] if each["name"] == "KUBEMEND_HUB"]
    assert hub == f"{settings['hub_name']}:{port}"


@every_variant
def test_mounts_of_others_are_not_kept_busy(variant: Sequence[str]) -> None:
    followed = {
        mount["mountPath"]
        for mount in manifests.agent(variant)["volumeMounts"]
        if mount.get("mountPropagation") == "HostToContainer"
    }
    mounted = {mount["mountPath"] for mount in manifests.agent(variant)["volumeMounts"]}
    assert PLACES_WITH_MOUNTS & mounted <= followed


def test_there_are_never_two_agents_on_a_node() -> None:
    assert manifests.one("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
