"""Run pods without a kubelet: sandboxes and containers created through CRI, with kubelet's configs.

For tests that need only the runtime. Nothing watches these pods: exited containers stay exited.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc.aio
import tenacity

from hack.devnode import cgroups, images, layout
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests.devnode.podconfig import config, spec, volumes

_CALL_SECONDS = 60.0


def container(name: str, script: str, **fields: Any) -> spec.Json:
    """Return a container of a pod's spec, as the API spells it, that runs a shell script in the dev node's busybox."""
    return {"name": name, "image": images.BUSYBOX, "command": ["/bin/sh", "-c", script], **fields}


@dataclass(frozen=True, slots=True)
class RunningPod:
    """Hold the ids of one pod. ``containers`` maps each container's name to its id."""

    pod: spec.Pod
    sandbox_id: str
    sandbox: api_pb2.PodSandboxConfig
    ip: str
    containers: dict[str, str] = field(default_factory=dict)


class Pods:
    """Create pods in one node's runtime and remove them. Open it with ``Pods.on``."""

    def __init__(self, node: layout.NodeLayout, channel: grpc.aio.Channel) -> None:
        self._node = node
        self._runtime: api_pb2_grpc.RuntimeServiceAsyncStub = api_pb2_grpc.RuntimeServiceStub(channel)
        self._images: api_pb2_grpc.ImageServiceAsyncStub = api_pb2_grpc.ImageServiceStub(channel)
        self._directories = volumes.PodDirectories(node.kubelet_root)
        self._made: list[RunningPod] = []

    @classmethod
    @asynccontextmanager
    async def on(cls, node: layout.NodeLayout) -> AsyncIterator[Self]:
        """Connect to the node's runtime; remove all created pods when the block ends."""
        async with grpcio.unix_channel(str(node.containerd_socket)) as channel:
            pods = cls(node, channel)
            try:
                yield pods
            finally:
                await pods.remove_all()

    async def run(
        self,
        *,
        name: str,
        containers: Sequence[spec.Json],
        namespace: str = "default",
        uid: str | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        cpus: Mapping[str, str] | None = None,
        **pod_spec: Any,
    ) -> RunningPod:
        """Start a pod: its sandbox, then its containers in order, without waiting for any of them.

        ``containers`` and ``pod_spec`` (``restartPolicy``, ``volumes``, …) are as in the API. ``cpus`` gives
        containers, by name, the cpuset that kubelet's CPU manager would. Raises grpc.aio.AioRpcError.
        """
        pod = spec.Pod.parse(
            {
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "uid": uid or str(uuid.uuid4()),
                    "annotations": dict(annotations or {}),
                    "labels": dict(labels or {}),
                },
                "spec": {**pod_spec, "containers": list(containers)},
            }
        )
        running = await self._start_sandbox(pod)
        self._made.append(running)
        mounted = await self._directories.prepare(pod, pod_ip=running.ip)
        for item in pod.mains:
            wanted = await self._config(item, running=running, mounted=mounted)
            wanted.linux.resources.cpuset_cpus = (cpus or {}).get(item.name, "")
            running.containers[item.name] = await self._start(wanted, running=running)
        return running

    async def remove(self, running: RunningPod) -> None:
        """Remove a pod with all its containers, of any creator, and its directories. Raises grpc.aio.AioRpcError."""
        sandbox_id = running.sandbox_id
        await self._stop(sandbox_id)
        await self._runtime.RemovePodSandbox(
            api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=_CALL_SECONDS
        )
        await self._directories.remove(running.pod)
        await asyncio.to_thread(cgroups.remove, self._cgroup(running.pod))
        self._made.remove(running)

    async def remove_all(self) -> None:
        """Remove every pod that was created here and still exists."""
        for running in list(self._made):
            await self.remove(running)

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(grpc.aio.AioRpcError),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_fixed(0.2),
        reraise=True,
    )
    async def _stop(self, sandbox_id: str) -> None:
        """Stop everything in a sandbox, with retries when a container has ended by itself, as kubelet does."""
        await self._runtime.StopPodSandbox(
            api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=_CALL_SECONDS
        )

    def _cgroup(self, pod: spec.Pod) -> str:
        return config.pod_cgroup(self._node.cgroup_parent, pod)

    async def _start_sandbox(self, pod: spec.Pod) -> RunningPod:
        sandbox = config.sandbox_config(
            pod, attempt=0, pod_logs=self._node.pod_logs, cgroup_parent=cgroups.parent(self._cgroup(pod))
        )
        config.pod_log_directory(self._node.pod_logs, pod).mkdir(parents=True)
        started = await self._runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=sandbox), timeout=_CALL_SECONDS)
        shown = await self._runtime.PodSandboxStatus(
            api_pb2.PodSandboxStatusRequest(pod_sandbox_id=started.pod_sandbox_id), timeout=_CALL_SECONDS
        )
        return RunningPod(pod=pod, sandbox_id=started.pod_sandbox_id, sandbox=sandbox, ip=shown.status.network.ip)

    async def _config(
        self, item: spec.Container, *, running: RunningPod, mounted: dict[str, Any]
    ) -> api_pb2.ContainerConfig:
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=item.image))
        image = await self._images.ImageStatus(request, timeout=_CALL_SECONDS)
        launch = config.Launch(
            attempt=0,
            image_ref=image.image.id,
            mounts=self._directories.mounts(item, pod=running.pod, volumes=mounted),
        )
        return config.container_config(item, pod=running.pod, launch=launch)

    async def _start(self, wanted: api_pb2.ContainerConfig, *, running: RunningPod) -> str:
        pod = running.pod
        log = config.pod_log_directory(self._node.pod_logs, pod) / wanted.log_path
        log.parent.mkdir(parents=True, exist_ok=True)
        request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=running.sandbox_id, config=wanted, sandbox_config=running.sandbox
        )
        created = await self._runtime.CreateContainer(request, timeout=_CALL_SECONDS)
        await self._runtime.StartContainer(
            api_pb2.StartContainerRequest(container_id=created.container_id), timeout=_CALL_SECONDS
        )
        link = f"{pod.name}_{pod.namespace}_{wanted.metadata.name}-{created.container_id}.log"
        (self._node.container_log_links / link).symlink_to(log)
        return created.container_id
