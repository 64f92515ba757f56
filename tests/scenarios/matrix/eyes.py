"""Observe the matrix's pods from outside: every API status, the runtime, the files."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.devnode import node, patience
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid
from kubemend.agent.restart import clone
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors as kube_errors
from kubemend.common.kube import paths

Json = dict[str, Any]

_PODS = paths.collection("pods", namespace="default")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pod at one moment: the API's object, and all its containers in the runtime, oldest first.

    ``records`` has the number of lines of each file on its volume.
    """

    pod: Json
    views: Sequence[ContainerSummary]
    infos: Mapping[ContainerId, ContainerStatus]
    records: Mapping[str, int]
    links: Path

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return str(self.pod["metadata"]["uid"])

    def status(self, name: str) -> Json:
        """Return the API's status of one container, empty when it has none."""
        status = self.pod.get("status", {})
        every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return next((item for item in every if item["name"] == name), {})

    def restarts(self, name: str) -> int:
        """Return a container's restartCount."""
        return int(self.status(name).get("restartCount", 0))

    def shown(self, name: str) -> ContainerId:
        """Return the id that kubelet reports."""
        return container_id(self.status(name))

    def running(self, name: str) -> list[ContainerId]:
        """Return the containers of that name that run."""
        return [view.id for view in self.views if view.ref.name == name and view.state is ContainerState.RUNNING]

    def lines(self, name: str) -> int:
        """Return how many lines a record on the volume has."""
        return self.records.get(name, 0)

    def last_words(self, container: ContainerId) -> str:
        """Return kubelet's termination message of the container if it ended now."""
        config = self.infos[container].config or {}
        inside = config.get("annotations", {}).get(clone.TERMINATION_PATH_ANNOTATION)
        paths_ = [mount["host_path"] for mount in config.get("mounts", ()) if mount.get("container_path") == inside]
        return Path(paths_[0]).read_text() if paths_ else ""


def container_id(status: Json) -> ContainerId:
    """Return the id in a container's status, without the runtime's name."""
    return ContainerId(str(status.get("containerID") or "").rpartition("//")[2])


@dataclass(slots=True)
class Eyes:
    """Watch all pods of the node from the moment it is opened. ``statuses`` has every status, by pod UID."""

    dev: node.DevNode
    api: kube.KubeClient
    cri: CriClient
    statuses: defaultdict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    gone: set[str] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, what: str, holds: Callable[[], bool], *, timeout: float) -> None:
        """Wait until a condition holds for the statuses. Raises TimeoutError, which names it."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError as error:
            raise TimeoutError(f"{what} did not come within {timeout:g} s") from error

    def latest(self, uid: str) -> Json:
        """Return the pod's last status."""
        return self.statuses[uid][-1] if self.statuses[uid] else {}

    async def look(self, pod: Json) -> Snapshot:
        """Read everything once."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        views = await self.cri.list_containers(pod_uid=PodUid(uid))
        infos = {}
        for view in views:
            with contextlib.suppress(NotFound):  # collected since the listing
                infos[view.id] = await self.cri.container_status(view.id)
        data = self.dev.layout.pod_dir(uid) / "volumes" / "kubernetes.io~empty-dir" / "data"
        return Snapshot(
            pod=await self.api.get(paths.pod("default", name)),
            views=[view for view in views if view.id in infos],
            infos=infos,
            records=_records(data),
            links=self.dev.layout.container_log_links,
        )

    async def follow(self) -> None:
        """Watch indefinitely."""
        version = ""
        while True:
            try:
                listing = await self.api.list(_PODS)
                version = listing.resource_version
                for item in listing.items:
                    await self._take(item, deleted=False)
                while True:
                    version = await self._watch(version)
            except kube_errors.GoneError:
                continue

    async def _watch(self, version: str) -> str:
        async with contextlib.aclosing(self.api.watch(_PODS, resource_version=version)) as events:
            async for event in events:
                version = event.resource_version or version
                if event.type.value != "BOOKMARK":
                    await self._take(event.object, deleted=event.type.value == "DELETED")
        return version

    async def _take(self, pod: Json, *, deleted: bool) -> None:
        uid = pod["metadata"]["uid"]
        async with self._changed:
            if deleted:
                self.gone.add(uid)
            else:
                self.statuses[uid].append(pod)
            self._changed.notify_all()


def _records(volume: Path) -> Mapping[str, int]:
    """Return the number of lines of each file; kubelet removes the volume of a pod that has ended."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for path in volume.iterdir():
            found[path.name] = len(path.read_text().splitlines())
    return found


@contextlib.asynccontextmanager
async def opened(dev: node.DevNode, api: kube.KubeClient) -> AsyncIterator[Eyes]:
    """Open the observers: on the API, and on the runtime's own socket."""
    async with CriClient(str(dev.layout.containerd_socket), deadlines=patience.RUNTIME) as cri:
        eyes = Eyes(dev=dev, api=api, cri=cri)
        following = asyncio.create_task(eyes.follow(), name="eyes")
        try:
            yield eyes
        finally:
            following.cancel()
            await asyncio.wait({following})
