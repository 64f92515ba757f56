"""A training whose pods another project's controller makes, places and replaces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hack.devnode import jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from tests.devnode.workload import CONTAINER, WORKER, Workload, apart

GPUS = 1
_EVENTS = paths.collection("events", namespace=NAMESPACE)
_LOOK_SECONDS = 0.05
_DEADLINE = 120.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of owner: its resource, and the selector of the pods that train for one of that name.

    ``budget`` returns, by name, what an owner itself counts of restarts, from the owner, its Events and its pods.
    ``container`` is the name that the training container must have; ``suspend`` is the path in the owner's spec of the
    field that suspends it. ``gang`` is the kind and the name of the gang that its pods are by themselves; those of
    other kinds get a label.
    """

    plural: str
    group: str
    version: str
    selector: str
    budget: Callable[[Json, Sequence[Json], Sequence[Json]], dict[str, Any]]
    container: str = CONTAINER
    suspend: tuple[str, ...] = ("suspend",)
    gang: tuple[str, str] = ("Gang", "{name}")

    @property
    def path(self) -> str:
        """The path of the collection."""
        return paths.collection(self.plural, namespace=NAMESPACE, group=self.group, version=self.version)


class Owned(Workload):
    """Manage such a training; create it with ``Owned.on``. Members are named as their pods."""

    def __init__(self, cluster: Cluster, api: kube.KubeClient, kind: Kind, name: str, *, size: int) -> None:
        super().__init__(cluster, api, cluster.first.layout.root / "platforms" / "shared" / name)
        self.name = name
        self.gang = gangs.GangKey(NAMESPACE, kind.gang[0], kind.gang[1].format(name=name))
        self.container_name = kind.container
        self._kind = kind
        self._size = size
        self._hosts: dict[str, str] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def on(
        cls, cluster: Cluster, api: kube.KubeClient, kind: Kind, name: str, *, size: int
    ) -> AsyncIterator[Self]:
        """Provide it for the length of the block; create the owner with ``begin``. Its pods are gone afterwards."""
        made = cls(cluster, api, kind, name, size=size)
        made._shared.mkdir(parents=True)
        try:
            yield made
        finally:
            await made._delete()

    @property
    def cluster(self) -> Cluster:
        """Return the nodes."""
        return self._cluster

    @property
    def api(self) -> kube.KubeClient:
        """Return the API server, as administrator."""
        return self._api

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the names of the members' pods, as last listed."""
        return tuple(self._hosts)

    def host(self, member: str) -> str:
        """Return the host name of a member's pod."""
        return self._hosts[member]

    async def begin(self, spec: Mapping[str, Any], **metadata: Any) -> None:
        """Create the owner, and wait until all members train. ``metadata`` is added to the owner's."""
        version = f"{self._kind.group}/{self._kind.version}"
        kind = await self._api.get(f"/apis/{version}")
        (name,) = {each["kind"] for each in kind["resources"] if each["name"] == self._kind.plural}
        body = {
            "apiVersion": version,
            "kind": name,
            "metadata": {"name": self.name, "namespace": NAMESPACE, **metadata},
        }
        await self._api.create(self._kind.path, {**body, "spec": spec})
        await self.all_train()

    async def suspend(self, value: bool) -> None:
        """Suspend or resume the training by its owner's field."""
        change: Any = value
        for field in reversed(("spec", *self._kind.suspend)):
            change = {field: change}
        await self._api.patch(f"{self._kind.path}/{self.name}", change, content_type=kube.Patch.MERGE)

    async def owner(self) -> Json:
        """Return the owner."""
        return await self._api.get(f"{self._kind.path}/{self.name}")

    async def budget(self) -> dict[str, Any]:
        """Return what the owner itself counts of restarts."""
        owner = await self.owner()
        about = f"involvedObject.uid={owner['metadata']['uid']}"
        events = (await self._api.list(_EVENTS, params={"fieldSelector": about})).items
        return self._kind.budget(owner, events, [*(await self.pods()).values()])

    async def status(self) -> Any:
        """Return the owner's status, and the pods'."""
        pods = (await self._api.list(jobsets.PODS)).items
        reported = {each["metadata"]["name"]: each.get("status") for each in pods}
        return (await self.owner()).get("status"), reported

    async def pods(self) -> Mapping[str, Json]:
        """Return the members' pods that are not being deleted and have not failed."""
        selector = self._kind.selector.format(name=self.name)
        found = (await self._api.list(jobsets.PODS, params={"labelSelector": selector})).items
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        alive = [each for each in alive if (each.get("status") or {}).get("phase") != "Failed"]
        pods = {each["metadata"]["name"]: each for each in alive}
        self._hosts = {name: pods[name]["spec"].get("hostname") or name for name in sorted(pods)}
        return pods

    async def all_train(self) -> None:
        """Wait until there are all members, and each makes further steps. Raises TimeoutError."""

        async def are_there() -> bool:
            return len(await self.pods()) == self._size

        await self.until(are_there, what=f"{self._size} pods")
        await self.trains()

    def template(self, *, restart_policy: str = "OnFailure", annotations: Mapping[str, str] | None = None) -> Json:
        """Return the template of a member's pod: opted in, in the gang, on a GPU of its own, on any node."""
        labels = {gangs.GANG: self.name} if self.gang.kind == "Gang" else {}
        selector = self._kind.selector.format(name=self.name)
        together = dict(each.split("=") for each in selector.split(","))
        spec = {
            **apart(together),
            **self.pod_spec(self.container(WORKER, {}, gpus=GPUS), restart_policy=restart_policy),
        }
        opted_in = {"kubemend.io/restart": "InPlace", **(annotations or {})}
        return {"metadata": {"labels": labels, "annotations": opted_in}, "spec": spec}

    def program(self, name: str, script: str) -> Path:
        """Add a program to the directory ``bin`` of the volume that all members see; return its path here."""
        path = self._shared / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        return path

    async def others(self, selector: str) -> list[tuple[str, list[int]]]:
        """Return the UIDs of other pods of the owner, and how often their containers were restarted."""
        found = (await self._api.list(jobsets.PODS, params={"labelSelector": selector})).items
        return [
            (pod["metadata"]["uid"], [each["restartCount"] for each in pod["status"]["containerStatuses"]])
            for pod in found
        ]

    async def delete(self, member: str) -> None:
        """Delete a member's pod, as a person or an eviction would."""
        await self._api.delete(paths.pod(NAMESPACE, member))

    async def replaced(self, uid: str) -> None:
        """Wait until the owner has made another pod in place of one; it may have another name. Raises TimeoutError."""

        async def is_replaced() -> bool:
            there = (await self.uids()).values()
            return len(there) == self._size and uid not in there

        await self.until(is_replaced, what=f"another pod for {uid}")

    async def _delete(self) -> None:
        with contextlib.suppress(errors.NotFoundError):
            await self._api.delete(f"{self._kind.path}/{self.name}", options={"propagationPolicy": "Background"})
        selector = self._kind.selector.format(name=self.name)
        async with asyncio.timeout(_DEADLINE):
            while (await self._api.list(jobsets.PODS, params={"labelSelector": selector})).items:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
