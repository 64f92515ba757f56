"""Create pods for the contract suite on a runtime as kubelet would."""

import itertools
from typing import Self

from hack.devnode import patience
from kubemend.agent.clients.cri import client
from kubemend.agent.model.workloads import ContainerId, PodUid, SandboxId
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc

_numbers = itertools.count()


class Node:
    """A runtime under test: our client on it, and the calls that only kubelet makes. Removes its pods.

    ``is_crio``: the runtime is CRI-O, whose answers differ in some points.
    """

    def __init__(
        self, endpoint: str, *, image: str, log_directory: str, has_events: bool = True, is_crio: bool = False
    ) -> None:
        self.endpoint = endpoint
        self.has_events = has_events
        self.is_crio = is_crio
        self.cri = client.CriClient(endpoint, deadlines=patience.RUNTIME)
        self._image = image
        self._log_directory = log_directory
        self._channel = grpcio.unix_channel(endpoint)
        self._stub = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._sandboxes: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        listed = await self._stub.ListContainers(api_pb2.ListContainersRequest(), timeout=30)
        for each in listed.containers:  # CRI-O would give them a grace period, which crun uses up if they did not start
            if each.pod_sandbox_id in self._sandboxes:
                await self._stub.StopContainer(api_pb2.StopContainerRequest(container_id=each.id), timeout=30)
        for sandbox in self._sandboxes:
            await self._stub.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox), timeout=30)
            await self._stub.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox), timeout=30)
        await self._channel.close()
        await self.cri.close()

    async def pod(self) -> "Pod":
        """Start a sandbox on the host's network (no CNI needed)."""
        uid = f"contract-{id(self):x}-{next(_numbers)}"
        config = api_pb2.PodSandboxConfig(
            metadata=api_pb2.PodSandboxMetadata(name=f"pod-{uid}", uid=uid, namespace="default"),
            labels={
                "io.kubernetes.pod.name": f"pod-{uid}",
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.pod.uid": uid,
            },
            annotations={"kubemend.io/restart": "InPlace"},
            log_directory=self._log_directory,
            linux=api_pb2.LinuxPodSandboxConfig(
                security_context=api_pb2.LinuxSandboxSecurityContext(namespace_options=_HOST_NETWORK)
            ),
        )
        request = api_pb2.RunPodSandboxRequest(config=config)
        answer = await self._stub.RunPodSandbox(request, timeout=30)
        self._sandboxes.append(answer.pod_sandbox_id)
        return Pod(self, uid=PodUid(uid), sandbox_id=SandboxId(answer.pod_sandbox_id), config=config)

    def container_config(self, name: str, *, attempt: int = 0) -> api_pb2.ContainerConfig:
        """Return the config of a container that sleeps."""
        return api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
            image=api_pb2.ImageSpec(image=self._image, user_specified_image=self._image),
            command=["/bin/sleep"],
            args=["600"],
            envs=[api_pb2.KeyValue(key="GREETING", value=b"hello")],
            annotations={"kubemend.io/restart-id": "r-1"} if attempt else {},
            log_path=f"{name}-{attempt}.log",
            linux=api_pb2.LinuxContainerConfig(
                security_context=api_pb2.LinuxContainerSecurityContext(namespace_options=_HOST_NETWORK)
            ),
        )


class Pod:
    """One pod's sandbox."""

    def __init__(self, node: Node, *, uid: PodUid, sandbox_id: SandboxId, config: api_pb2.PodSandboxConfig) -> None:
        self.uid = uid
        self.sandbox_id = sandbox_id
        self.config = config
        self._node = node

    async def create(self, name: str = "trainer", *, attempt: int = 0, labelled: bool = True) -> ContainerId:
        """Create a container in it, with kubelet's labels or without any."""
        config = self._node.container_config(name, attempt=attempt)
        if labelled:
            config.labels.update({**self.config.labels, "io.kubernetes.container.name": name})
        return await self._node.cri.create_container(
            sandbox_id=self.sandbox_id, config=config, sandbox_config=self.config
        )

    async def run(self, name: str = "trainer", *, attempt: int = 0) -> ContainerId:
        """Create a container in it and start it."""
        container_id = await self.create(name, attempt=attempt)
        await self._node.cri.start_container(container_id)
        return container_id


_HOST_NETWORK = api_pb2.NamespaceOption(network=api_pb2.NODE, pid=api_pb2.CONTAINER)
