"""Bindings of pods to nodes, as a scheduler writes them."""

from typing import Any

import pytest

from common.kube import errors, paths
from tests.contract.jobs.bench import Bench

Json = dict[str, Any]


async def made(bench: Bench, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "busybox:1"}]
    collection = paths.collection("pods", namespace=bench.namespace)
    return await bench.api.create(collection, {"metadata": {"name": "a"}, "spec": {"containers": containers, **spec}})


async def bind(bench: Bench, node: str, *, uid: str = "") -> None:
    metadata = {"name": "a", "namespace": bench.namespace, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    await bench.api.create(f"{paths.pod(bench.namespace, 'a')}/binding", body)


async def test_a_bound_pod_is_on_its_node_and_says_that_it_is_scheduled(bench: Bench) -> None:
    pod = await made(bench)
    await bind(bench, "node-1", uid=pod["metadata"]["uid"])
    bound = await bench.pod(pod)
    assert bound["spec"]["nodeName"] == "node-1"
    (told,) = [each for each in bound["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert told["status"] == "True"


async def test_a_pod_is_bound_once(bench: Bench) -> None:
    pod = await made(bench)
    await bind(bench, "node-1")
    with pytest.raises(errors.ConflictError, match='pod a is already assigned to node "node-1"'):
        await bind(bench, "node-2")
    assert (await bench.pod(pod))["spec"]["nodeName"] == "node-1"


async def test_a_gated_pod_is_not_bound(bench: Bench) -> None:
    await made(bench, schedulingGates=[{"name": "example.com/wait"}])
    with pytest.raises(errors.ConflictError, match=r"non-empty \.spec\.schedulingGates"):
        await bind(bench, "node-1")


async def test_a_binding_is_for_the_pod_that_it_means(bench: Bench) -> None:
    await made(bench)
    with pytest.raises(errors.ConflictError, match="Precondition failed: UID"):
        await bind(bench, "node-1", uid="00000000-0000-0000-0000-000000000000")
