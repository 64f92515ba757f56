"""Kubelet's mounts reach containers, although kubelet has a mount namespace of its own on a dev node."""

from typing import Any

import pytest

from kubemend.common.kube import paths
from tests.contract.kubelet.cluster import LOOP, NAMESPACE, Cluster, container, newest

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

SOURCES: dict[str, dict[str, Any]] = {
    "secret": {"secret": {"secretName": "volumes"}},
    "config": {"configMap": {"name": "volumes"}},
    "token": {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "hub"}}]}},
    "memory": {"emptyDir": {"medium": "Memory"}},
}


async def test_secrets_tokens_config_maps_and_memory_reach_the_container(cluster: Cluster) -> None:
    for kind, data in (("secrets", {"key": "aGlkZGVu"}), ("configmaps", {"key": "plain"})):
        await cluster.kube.create(
            paths.collection(kind, namespace=NAMESPACE), {"metadata": {"name": "volumes"}, "data": data}
        )
    await cluster.kube.create(
        paths.collection("serviceaccounts", namespace=NAMESPACE), {"metadata": {"name": "volumes"}}
    )
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in SOURCES]
    pod = await cluster.running(
        container("main", LOOP, volumeMounts=mounts),
        serviceAccountName="volumes",
        volumes=[{"name": name, **source} for name, source in SOURCES.items()],
    )
    script = "cat /secret/key /config/key; wc -c < /token/token; grep ' /memory tmpfs ' /proc/mounts"
    async with cluster.runtime() as runtime:
        answer = await runtime.exec_sync(newest(await cluster.containers(pod)).id, ("sh", "-c", script), timeout=60)
    read, mount = answer.stdout.decode().splitlines()
    assert read.startswith("hiddenplain")
    assert int(read.removeprefix("hiddenplain")) > 100
    assert mount.startswith("tmpfs /memory tmpfs")
