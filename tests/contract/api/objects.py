"""Small objects for the contract tests."""

from typing import Any

from kubemend.common.kube import paths

Json = dict[str, Any]


def pod(name: str, *, node: str = "", **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "trainer", "image": "busybox:1"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def pods(namespace: str) -> str:
    return paths.collection("pods", namespace=namespace)


def leases(namespace: str) -> str:
    return paths.collection("leases", namespace=namespace, group="coordination.k8s.io")


def jobs(namespace: str) -> str:
    return paths.collection("jobs", namespace=namespace, group="batch")


def condition(kind: str, status: str = "True", **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, **more}


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in items]
