"""Act on a dev node in kubelet tests: create pods, wait for their API status, act on the runtime."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from hack.devnode import images, node, patience
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid, SandboxId
from kubemend.agent.restart import clone, reservations
from kubemend.common.kube import client, errors, paths
from kubemend.common.pb.runtime.v1 import api_pb2 as cri
from tests.devnode.looks import Looks

Json = dict[str, Any]
DEADLINE = 100.0
NAMESPACE = "default"

LOOP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
"""A container that runs until SIGTERM, and then stops at once."""


def container(name: str, script: str, **fields: Any) -> Json:
    """A container of our busybox that runs a shell script."""
    made = {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    return {**made, **fields}


class Cluster:
    """One dev node in a test."""

    def __init__(self, dev_node: node.DevNode, kube: client.KubeClient, looks: Looks) -> None:
        self.node = dev_node
        self.kube = kube
        self.looks = looks
        self._names: list[str] = []

    async def create(self, *containers: Json, inits: Sequence[Json] = (), policy: str = "Always", **spec: Any) -> Json:
        """Create a pod on the node and return it."""
        name = f"p-{uuid.uuid4().hex[:8]}"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.node.name,
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": list(containers),
                **({"initContainers": list(inits)} if inits else {}),
                **spec,
            },
        }
        created = await self.kube.create(paths.collection("pods", namespace=NAMESPACE), body)
        self._names.append(name)
        return created

    async def running(self, *containers: Json, **spec: Any) -> Json:
        """Create a pod and wait until it is ready."""
        return await self.wait(await self.create(*containers, **spec), is_ready)

    async def get(self, pod: Json) -> Json:
        """Return the pod as it is now."""
        return await self.kube.get(path(pod))

    async def wait(self, pod: Json, holds: Callable[[Json], bool], *, timeout: float = DEADLINE) -> Json:
        """Wait until the API shows it, by a watch; fail with the last status after ``timeout`` seconds."""
        last = await self.get(pod)
        try:
            async with asyncio.timeout(timeout), contextlib.aclosing(self._follow(pod)) as objects:
                async for last in objects:
                    if holds(last):
                        return last
        except TimeoutError:
            raise AssertionError(f"did not happen within {timeout:g} s; last status: {last.get('status')}") from None
        raise AssertionError("the pod is gone")

    async def gone(self, pod: Json) -> None:
        """Wait until the pod object is removed."""
        async with asyncio.timeout(DEADLINE), contextlib.aclosing(self._follow(pod)) as objects:
            async for _ in objects:
                pass

    async def delete(self, pod: Json) -> None:
        """Delete the pod with its own grace."""
        with contextlib.suppress(errors.NotFoundError):
            await self.kube.delete(path(pod))

    async def remove_pods(self) -> None:
        """Delete all pods of this test; kubelet ends them asynchronously."""
        for name in self._names:
            with contextlib.suppress(errors.NotFoundError):
                await self.kube.delete(paths.pod(NAMESPACE, name), options={"gracePeriodSeconds": 1})

    async def condition(self, pod: Json, kind: str, value: str) -> None:
        """Set a condition that is not kubelet's."""
        entry = {"type": kind, "status": value, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        await self.kube.patch_status(path(pod), {"status": {"conditions": [entry]}})

    def volume(self, pod: Json, name: str) -> Path:
        """Return an emptyDir of the pod on this machine."""
        where = self.node.layout.pod_dir(uid(pod))
        return where / "volumes" / "kubernetes.io~empty-dir" / name

    @asynccontextmanager
    async def between_looks(self) -> AsyncIterator[None]:
        """Hold kubelet's relists in the block."""
        await self.looks.hold()
        try:
            yield
        finally:
            await self.looks.release()

    async def touch(self, pod: Json) -> None:
        """Change the pod's object, which makes kubelet sync it, as it also does by a timer about once a minute."""
        body = {"metadata": {"labels": {"touched": uuid.uuid4().hex[:8]}}}
        await self.kube.patch(path(pod), body, content_type=client.Patch.MERGE)

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[CriClient]:
        """Connect to the runtime."""
        async with CriClient(str(self.node.layout.containerd_socket), deadlines=patience.RUNTIME) as opened:
            yield opened

    async def containers(self, pod: Json, name: str = "main") -> tuple[ContainerSummary, ...]:
        """Return the runtime's containers of that name, oldest first."""
        async with self.runtime() as runtime:
            return await runtime.list_containers(pod_uid=PodUid(uid(pod)), name=name)

    async def signal(self, pod: Json, name: str = "main", *, exit_code: int = 1) -> None:
        """Make a container that runs ``obeying`` exit with that code."""
        async with self.runtime() as runtime:
            command = ("sh", "-c", f"echo {exit_code} > /tmp/exit")
            await runtime.exec_sync(newest(await self.containers(pod, name)).id, command, timeout=60)

    async def _follow(self, pod: Json) -> AsyncGenerator[Json, None]:
        selector = {"fieldSelector": f"metadata.name={pod['metadata']['name']}"}
        collection = paths.collection("pods", namespace=NAMESPACE)
        listing = await self.kube.list(collection, params=selector)
        for item in listing.items:
            yield item
        if not listing.items:
            return
        events = self.kube.watch(collection, params=selector, resource_version=listing.resource_version)
        async with contextlib.aclosing(events) as opened:
            async for event in opened:
                if event.type.value == "DELETED":
                    return
                if event.type.value != "BOOKMARK":
                    yield event.object


def obeying() -> str:
    """A script that exits with the code that ``Cluster.signal`` writes."""
    return "rm -f /tmp/exit; trap 'exit 0' TERM; while ! [ -s /tmp/exit ]; do sleep 0.05; done; exit $(cat /tmp/exit)"


def path(pod: Json) -> str:
    return paths.pod(NAMESPACE, pod["metadata"]["name"])


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def status_of(pod: Json, name: str = "main") -> Json:
    """Return the status of one container; empty while there is none."""
    status = pod.get("status", {})
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((item for item in every if item["name"] == name), {})


def restarts(pod: Json, name: str = "main") -> int:
    return int(status_of(pod, name).get("restartCount", 0))


def is_ready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "True"


def conditions(pod: Json) -> dict[str, str]:
    return {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions") or ()}


def runs_again(count: int, name: str = "main") -> Callable[[Json], bool]:
    """Return whether the container runs and has been restarted that often."""
    return lambda pod: restarts(pod, name) == count and "running" in status_of(pod, name).get("state", {})


def runs_again_at_once(count: int) -> Callable[[Json], bool]:
    """Return whether the container runs and has been restarted that often; fail if kubelet's backoff delays it."""

    def holds(pod: Json) -> bool:
        assert status_of(pod).get("state", {}).get("waiting", {}).get("reason") != "CrashLoopBackOff"
        return runs_again(count)(pod)

    return holds


def newest(views: Sequence[ContainerSummary]) -> ContainerSummary:
    return views[-1]


def states(views: Sequence[ContainerSummary]) -> list[tuple[int, ContainerState]]:
    """Return attempt and state of each container, oldest first."""
    return [(view.attempt, view.state) for view in views]


class Swapper:
    """The swap in bare calls: n+1 is n's own config, with the attempt increased by one."""

    def __init__(self, cluster: Cluster, pod: Json, name: str = "main") -> None:
        self._cluster = cluster
        self._pod = pod
        self._name = name

    async def create_next(
        self, *, annotations: dict[str, str] | None = None, attempt: int | None = None
    ) -> ContainerId:
        """Create n+1 (or that attempt) from the newest container and leave it there."""
        old = newest(await self._cluster.containers(self._pod, self._name))
        config = await self._config_of(old)
        attempt = old.attempt + 1 if attempt is None else attempt
        config.metadata.attempt = attempt
        config.annotations["io.kubernetes.container.restartCount"] = str(attempt)
        config.annotations.update(annotations or {})
        config.log_path = f"{self._name}/{attempt}.log"
        return await self._create(config, sandbox_id=old.sandbox_id)

    async def reserve(self, *, attempt: int) -> ContainerId:
        """Reserve the name of that attempt, as a rerun does."""
        old = newest(await self._cluster.containers(self._pod, self._name))
        config = await self._config_of(old)
        config.annotations[clone.RESTART_ID_ANNOTATION] = "r1"
        return await self._create(reservations.config(config, attempt=attempt), sandbox_id=old.sandbox_id)

    async def stop(self) -> None:
        """SIGKILL the newest running container."""
        async with self._cluster.runtime() as runtime:
            views = await self._cluster.containers(self._pod, self._name)
            target = [view for view in views if view.state is ContainerState.RUNNING][-1]
            await runtime.stop_container(target.id, grace=0)

    async def start(self, container_id: ContainerId) -> None:
        """Start the successor."""
        async with self._cluster.runtime() as runtime:
            await runtime.start_container(container_id)

    async def remove(self) -> None:
        """Remove every container of that name."""
        async with self._cluster.runtime() as runtime:
            for view in await self._cluster.containers(self._pod, self._name):
                await runtime.remove_container(view.id)

    async def _config_of(self, container: ContainerSummary) -> cri.ContainerConfig:
        async with self._cluster.runtime() as runtime:
            info = await runtime.container_status(container.id)
        assert info.config is not None
        return _config(dict(info.config))

    async def _create(self, config: cri.ContainerConfig, *, sandbox_id: SandboxId) -> ContainerId:
        async with self._cluster.runtime() as runtime:
            sandbox_config = await runtime.sandbox_config(sandbox_id)
            return await runtime.create_container(sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)


def _config(raw: Json) -> cri.ContainerConfig:
    envs = raw.pop("envs", None) or []
    config = json_format.ParseDict(raw, cri.ContainerConfig())
    config.envs.extend(cri.KeyValue(key=item["key"], value=item.get("value", "").encode()) for item in envs)
    return config
