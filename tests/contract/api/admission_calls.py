"""Build the calls of the tables of cases (``admission_agents``, ``admission_controllers``)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common.kube import client, paths
from tests.contract.api import objects

Json = dict[str, Any]

HERE: Final = "node-here"
THERE: Final = "node-there"
"""The agent is on the first of the two."""
RULES: Final = paths.collection("devicetaintrules", group="resource.k8s.io", version="v1beta2")


@dataclass(frozen=True, slots=True)
class Scene:
    """Hold a namespace of the test's own, with the objects of the cases."""

    namespace: str
    administrator: client.KubeClient

    def pod(self, name: str) -> str:
        """Return a pod's path."""
        return paths.pod(self.namespace, name)

    def of(self, resource: str, group: str = "", version: str = "v1", namespace: str = "") -> str:
        """Return a collection's path."""
        return paths.collection(resource, namespace=namespace or self.namespace, group=group, version=version)


Call = Callable[[client.KubeClient, Scene], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """``refused`` is text of the refusal; empty where the call is allowed."""

    name: str
    caller: str
    call: Call
    refused: str = ""


def status(of: str, change: Json, **metadata: Any) -> Call:
    """Return a patch of a pod's status, by its name, or of a node's."""
    body = {"status": change, **({"metadata": metadata} if metadata else {})}
    return lambda api, scene: api.patch_status(scene.pod(of) if "node" not in of else f"{paths.NODES}/{of}", body)


def condition(kind: str, value: str = "True") -> Json:
    """Return a status with one condition."""
    return {"conditions": [objects.condition(kind, value, reason="Xid79", message="fell off the bus")]}


def patched(of: str, change: Json) -> Call:
    """Return a patch of a pod, by its name, or of a node."""
    return lambda api, scene: api.patch(scene.pod(of) if "node" not in of else f"{paths.NODES}/{of}", change)


def tainted(node: str, *taints: Json) -> Call:
    """Return the patch that adds taints to a node. (Their list has no keys: it is replaced as a whole.)"""

    async def call(api: client.KubeClient, scene: Scene) -> None:
        before = (await scene.administrator.get(f"{paths.NODES}/{node}"))["spec"].get("taints", [])
        await api.patch(f"{paths.NODES}/{node}", {"spec": {"taints": [*before, *taints]}})

    return call


def deleted(of: str, **options: Any) -> Call:
    """Return the deletion of a pod."""
    return lambda api, scene: api.delete(scene.pod(of), options={"gracePeriodSeconds": 0, **options})


def event(scene: Scene, *, node: str = HERE, component: str = "kubemend", about: Json | None = None) -> Json:
    """Return an Event as the agent records it."""
    involved = about or {"kind": "Pod", "namespace": scene.namespace, "name": "here", "uid": "1"}
    return {
        "metadata": {"generateName": "event-", "namespace": involved.get("namespace", "default")},
        "involvedObject": {"apiVersion": "v1", **involved},
        "reason": "RestartedInPlace", "type": "Normal", "message": "in 44 ms", "count": 1,
        "source": {"component": component, "host": node},
        "reportingComponent": component, "reportingInstance": node,
    }  # fmt: skip


def records_event(*, where: str = "", **event_of: Any) -> Call:
    """Return the creation of an Event."""
    return lambda api, scene: api.create(scene.of("events", namespace=where), event(scene, **event_of))


def changes_event(by: str, change: Json) -> Call:
    """Return a change of an Event that an agent on that node has recorded."""

    async def call(api: client.KubeClient, scene: Scene) -> None:
        created = await scene.administrator.create(scene.of("events"), event(scene, node=by))
        await api.patch(f"{scene.of('events')}/{created['metadata']['name']}", change)

    return call


def counts(of: str) -> Call:
    """Return a change of the count of an Event that this component recorded, by events.k8s.io."""

    async def call(api: client.KubeClient, scene: Scene) -> None:
        about = {"kind": "JobSet", "namespace": scene.namespace, "name": "js", "uid": "1"}
        body = {
            "metadata": {"generateName": "event-"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning",
            "reason": "JobCreationFailed", "action": "Reconciling", "note": "no room",
            "regarding": {"apiVersion": "jobset.x-k8s.io/v1alpha2", **about},
            "reportingController": of, "reportingInstance": "one",
        }  # fmt: skip
        created = await scene.administrator.create(scene.of("events", "events.k8s.io"), body)
        change = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
        path = f"{scene.of('events', 'events.k8s.io')}/{created['metadata']['name']}"
        await api.patch(path, {}, content_type=client.Patch.MERGE)
        await api.patch(path, change, content_type=client.Patch.MERGE)

    return call


def makes(resource: str, body: Json, *, group: str = "", version: str = "v1", where: str = "") -> Call:
    """Return the creation of an object."""
    return lambda api, scene: api.create(scene.of(resource, group, version, where), body)


def removes(resource: str, name: str, *, group: str = "", version: str = "v1") -> Call:
    """Return the deletion of an existing object."""
    return lambda api, scene: api.delete(f"{scene.of(resource, group, version)}/{name}")


def owned(name: str = "js", *, kind: str = "JobSet", api_version: str = "jobset.x-k8s.io/v1alpha2") -> Json:
    """Return metadata that name a controlling owner."""
    return {
        "ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": name, "uid": "1", "controller": True}],
    }


def job(
    name: str,
    *,
    pod: Json | None = None,
    container: Json | None = None,
    annotations: Json | None = None,
    **metadata: Any,
) -> Json:
    """Return a suspended Job; ``pod`` is added to its pods' spec, ``container`` to their container.

    ``annotations`` are its pods'.
    """
    containers = [{"name": "trainer", "image": "busybox:1", **(container or {})}]
    pod = {"restartPolicy": "Never", "containers": containers, **(pod or {})}
    template = {"metadata": {"annotations": annotations or {}}, "spec": pod}
    return {"metadata": {"name": name, **metadata}, "spec": {"suspend": True, "template": template}}


def taint_rule(node: str, *, effect: str = "NoSchedule", device: str = "gpu-0") -> Json:
    """Return a DeviceTaintRule as the agent on a node creates it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "1"}
    selector = {"driver": "gpu.example.com", "pool": node, **({"device": device} if device else {})}
    return {
        "metadata": {
            "generateName": "kubemend-", "labels": {"app.kubernetes.io/managed-by": "kubemend"},
            "ownerReferences": [owner],
        },
        "spec": {
            "deviceSelector": selector, "taint": {"key": "kubemend.io/unhealthy", "value": "Xid79", "effect": effect},
        },
    }  # fmt: skip


def taints(node: str = HERE, **rule: Any) -> Call:
    """Return the creation of a DeviceTaintRule."""
    return lambda api, _: api.create(RULES, taint_rule(node, **rule))
