"""Hold the state of the stand-in runtime: sandboxes, containers, reserved names and events, in memory.

It has the observed behaviour of containerd 2.1, with the codes and texts of its errors. There are no processes:
containers run until they are stopped or ``exit`` is called, and commands in them end as ``exec_results`` defines.
"""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from kubemend.common.pb.runtime.v1 import api_pb2 as pb

_CRIO = "io.kubernetes.cri-o."

IMAGE_PATH = "PATH=/bin"
"""The environment of the stand-in's only image."""


IMAGE_VOLUME = "/run/containerd/image-volumes/1/rootfs"
"""Where it has mounted any image that is a volume."""


class RefusedError(Exception):
    """The runtime refuses, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(slots=True)
class Behaviour:
    """Differences from containerd 2.1.

    ``has_events`` False: no GetContainerEvents (containerd 1.6). ``tells_events`` False: the stream stays silent (CRI-O
    by default). ``gives_config`` False: the verbose status has no config. ``is_crio``: it has CRI-O's OCI spec instead.
    ``root`` is every root's path in the spec, and ``namespaces`` the namespaces there. ``spec_of_new`` replaces parts
    of its ``process`` for every attempt but the first. ``runtime_type``: the low-level runtime of all containers, None
    if not reported (CRI-O). ``start_fails``: no container can be started, which containerd takes for the container's
    exit (internal/cri/server/container_start.go). ``config`` is its configuration in the verbose Status.
    """

    has_events: bool = True
    tells_events: bool = True
    gives_config: bool = True
    is_crio: bool = False
    root: str = "rootfs"
    namespaces: Any = None
    spec_of_new: dict[str, Any] = field(default_factory=dict)
    runtime_type: str | None = "io.containerd.runc.v2"
    name: str = "containerd"
    version: str = "2.1.9"
    start_fails: bool = False
    config: str = '{"containerd": {"runtimes": {"runc": {"runtimeType": "io.containerd.runc.v2", "options": {}}}}}'


@dataclass(slots=True)
class Sandbox:
    """One pod sandbox."""

    id: str
    config: pb.PodSandboxConfig
    created_at: int
    ready: bool = True
    runtime_handler: str = ""

    def status(self) -> pb.PodSandboxStatus:
        """Return its CRI status."""
        return pb.PodSandboxStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=pb.SANDBOX_READY if self.ready else pb.SANDBOX_NOTREADY,
            created_at=self.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )


@dataclass(slots=True)
class Container:
    """One container."""

    id: str
    name: str
    sandbox: Sandbox
    config: pb.ContainerConfig
    created_at: int
    state: "pb.ContainerState.ValueType" = pb.CONTAINER_CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    resized: pb.LinuxContainerResources | None = None

    def status(self) -> pb.ContainerStatus:
        """Return its CRI status."""
        return pb.ContainerStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            exit_code=self.exit_code,
            reason=self.reason,
            image=self.config.image,
            labels=self.config.labels,
            annotations=self.config.annotations,
            mounts=self.config.mounts,
            log_path=f"{self.sandbox.config.log_directory}/{self.config.log_path}",
            resources=pb.ContainerResources(linux=self.resized or self.config.linux.resources),
        )

    def verbose(self, behaviour: Behaviour) -> str:
        """Return the JSON of its verbose status."""
        env = [IMAGE_PATH, *(f"{item.key}={item.value.decode()}" for item in self.config.envs)]
        mounts = self.config.mounts
        info: dict[str, Any] = {
            "sandboxID": self.sandbox.id,
            "pid": 4242 if self.state == pb.CONTAINER_RUNNING else 0,
            "runtimeSpec": {
                "root": {"path": behaviour.root},
                "process": {"env": env, "args": [*self.config.command, *self.config.args]},
                "mounts": [{"destination": each.container_path, "source": each.host_path} for each in mounts],
                "linux": {"cgroupsPath": f"/k8s.io/{self.id}", "namespaces": behaviour.namespaces},
            },
        }
        if behaviour.runtime_type is not None:
            info["runtimeType"] = behaviour.runtime_type
        if behaviour.is_crio:
            info["runtimeSpec"]["annotations"] = {f"{_CRIO}ContainerID": self.id, f"{_CRIO}Image": "sha256:0123"}
            info["runtimeSpec"]["process"] |= {"args": list(self.config.command)}
        elif behaviour.gives_config:
            info["config"] = go_json(self.config)
        info["runtimeSpec"]["process"] |= behaviour.spec_of_new if self.config.metadata.attempt else {}
        return json.dumps(info)


@dataclass(slots=True)
class Runtime:
    """All sandboxes and containers. ``on_event`` is called with every event."""

    on_event: Callable[[pb.ContainerEventResponse], None]
    behaviour: Behaviour = field(default_factory=Behaviour)
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    exec_results: dict[tuple[str, ...], pb.ExecSyncResponse] = field(default_factory=dict)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _last_time: int = 0

    def version(self, _: pb.VersionRequest) -> pb.VersionResponse:
        """Version."""
        return pb.VersionResponse(
            version="0.1.0",
            runtime_name=self.behaviour.name,
            runtime_version=self.behaviour.version,
            runtime_api_version="v1",
        )

    def status(self, request: pb.StatusRequest) -> pb.StatusResponse:
        """Status."""
        return pb.StatusResponse(info={"config": self.behaviour.config} if request.verbose else {})

    def run_pod_sandbox(self, request: pb.RunPodSandboxRequest) -> pb.RunPodSandboxResponse:
        """RunPodSandbox."""
        sandbox = Sandbox(id=self._new_id(), config=request.config, created_at=self._now())
        sandbox.runtime_handler = request.runtime_handler
        self.sandboxes[sandbox.id] = sandbox
        for kind in (pb.CONTAINER_CREATED_EVENT, pb.CONTAINER_STARTED_EVENT):
            self._tell(kind, sandbox.id, sandbox=sandbox)
        return pb.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    def stop_pod_sandbox(self, request: pb.StopPodSandboxRequest) -> pb.StopPodSandboxResponse:
        """StopPodSandbox."""
        for container in self._containers_in(request.pod_sandbox_id):
            self._end(container, exit_code=137)
        if (sandbox := self.sandboxes.get(request.pod_sandbox_id)) is not None and sandbox.ready:
            sandbox.ready = False
            self._tell(pb.CONTAINER_STOPPED_EVENT, sandbox.id, sandbox=sandbox)
        return pb.StopPodSandboxResponse()

    def remove_pod_sandbox(self, request: pb.RemovePodSandboxRequest) -> pb.RemovePodSandboxResponse:
        """RemovePodSandbox."""
        for container in self._containers_in(request.pod_sandbox_id):
            self._remove(container)
        if (sandbox := self.sandboxes.pop(request.pod_sandbox_id, None)) is not None:
            self._tell(pb.CONTAINER_DELETED_EVENT, sandbox.id, sandbox=sandbox)
        return pb.RemovePodSandboxResponse()

    def list_pod_sandbox(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        """ListPodSandbox."""
        wanted = request.filter.label_selector.items()
        return pb.ListPodSandboxResponse(
            items=(
                pb.PodSandbox(
                    id=sandbox.id,
                    metadata=sandbox.config.metadata,
                    state=sandbox.status().state,
                    created_at=sandbox.created_at,
                    labels=sandbox.config.labels,
                    annotations=sandbox.config.annotations,
                    runtime_handler=sandbox.runtime_handler,
                )
                for sandbox in self.sandboxes.values()
                if wanted <= sandbox.config.labels.items()
            )
        )

    def pod_sandbox_status(self, request: pb.PodSandboxStatusRequest) -> pb.PodSandboxStatusResponse:
        """PodSandboxStatus."""
        sandbox = self.sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, "an error occurred when try to find sandbox: not found")
        config: dict[str, Any] = {"config": go_json(sandbox.config)} if self.behaviour.gives_config else {}
        if self.behaviour.is_crio:
            log = f"{sandbox.config.log_directory}/{sandbox.id}.log"
            config = {"runtimeSpec": {"annotations": {f"{_CRIO}SandboxID": sandbox.id, f"{_CRIO}LogPath": log}}}
        info = {"info": json.dumps({"pid": 4241, **config})} if request.verbose else {}
        return pb.PodSandboxStatusResponse(status=sandbox.status(), info=info)

    def create_container(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        """CreateContainer."""
        sandbox = self.sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            details = f'failed to find sandbox id "{request.pod_sandbox_id}": not found'
            raise RefusedError(grpc.StatusCode.NOT_FOUND, details)
        name = _reserved_name(request.config.metadata, pod=sandbox.config.metadata)
        for other in self.containers.values():
            if other.name == name:
                details = (
                    f'failed to reserve container name "{name}"; check if another CreateContainer request is in '
                    f'progress: name "{name}" is reserved for "{other.id}"'
                )
                raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, details)
        _mount_images(request.config)
        container = Container(
            id=self._new_id(), name=name, sandbox=sandbox, config=request.config, created_at=self._now()
        )
        self.containers[container.id] = container
        self._tell(pb.CONTAINER_CREATED_EVENT, container.id, sandbox=sandbox)
        return pb.CreateContainerResponse(container_id=container.id)

    def start_container(self, request: pb.StartContainerRequest) -> pb.StartContainerResponse:
        """StartContainer."""
        container = self._container(request.container_id)
        if container.state != pb.CONTAINER_CREATED:
            state = pb.ContainerState.Name(container.state)
            details = f'failed to set starting state for container "{container.id}": container is in {state} state'
            raise RefusedError(grpc.StatusCode.UNKNOWN, details)
        if self.behaviour.start_fails:
            container.state, container.finished_at = pb.CONTAINER_EXITED, self._now()
            container.exit_code, container.reason = 128, "StartError"
            raise RefusedError(grpc.StatusCode.UNKNOWN, "failed to create containerd task: cannot start")
        container.state, container.started_at = pb.CONTAINER_RUNNING, self._now()
        self._tell(pb.CONTAINER_STARTED_EVENT, container.id, sandbox=container.sandbox)
        return pb.StartContainerResponse()

    def stop_container(self, request: pb.StopContainerRequest) -> pb.StopContainerResponse:
        """StopContainer; also of a missing one."""
        if (container := self.containers.get(request.container_id)) is not None:
            self._end(container, exit_code=137)
        return pb.StopContainerResponse()

    def remove_container(self, request: pb.RemoveContainerRequest) -> pb.RemoveContainerResponse:
        """RemoveContainer; also of a missing one."""
        if (container := self.containers.get(request.container_id)) is not None:
            self._remove(container)
        return pb.RemoveContainerResponse()

    def list_containers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        """ListContainers."""
        wanted = request.filter
        return pb.ListContainersResponse(
            containers=(
                pb.Container(
                    id=item.id,
                    pod_sandbox_id=item.sandbox.id,
                    metadata=item.config.metadata,
                    image=item.config.image,
                    state=item.state,
                    created_at=item.created_at,
                    labels=item.config.labels,
                    annotations=item.config.annotations,
                )
                for item in self.containers.values()
                if wanted.id in ("", item.id)
                and wanted.pod_sandbox_id in ("", item.sandbox.id)
                and (not wanted.HasField("state") or wanted.state.state == item.state)
                and wanted.label_selector.items() <= item.config.labels.items()
            )
        )

    def container_status(self, request: pb.ContainerStatusRequest) -> pb.ContainerStatusResponse:
        """ContainerStatus."""
        container = self._container(request.container_id)
        behaviour = self.behaviour
        verbose = container.verbose(behaviour)
        return pb.ContainerStatusResponse(status=container.status(), info={"info": verbose} if request.verbose else {})

    def exec_sync(self, request: pb.ExecSyncRequest) -> pb.ExecSyncResponse:
        """ExecSync: the entry of ``exec_results`` for the command, else success without output."""
        container = self._container(request.container_id)
        if container.state != pb.CONTAINER_RUNNING:
            state = pb.ContainerState.Name(container.state)
            raise RefusedError(grpc.StatusCode.UNKNOWN, f"failed to exec in container: container is in {state} state")
        return self.exec_results.get(tuple(request.cmd), pb.ExecSyncResponse())

    def exit(self, container_id: str, *, exit_code: int, reason: str = "Error") -> None:
        """Let a running container's process end by itself."""
        self._end(self.containers[container_id], exit_code=exit_code, reason=reason)

    def _container(self, container_id: str) -> Container:
        if (container := self.containers.get(container_id)) is None:
            details = f'an error occurred when try to find container "{container_id}": not found'
            raise RefusedError(grpc.StatusCode.NOT_FOUND, details)
        return container

    def _containers_in(self, sandbox_id: str) -> list[Container]:
        return [item for item in self.containers.values() if item.sandbox.id == sandbox_id]

    def _end(self, container: Container, *, exit_code: int, reason: str = "Error") -> None:
        if container.state != pb.CONTAINER_RUNNING:
            return
        container.state, container.finished_at = pb.CONTAINER_EXITED, self._now()
        container.exit_code, container.reason = exit_code, reason if exit_code else "Completed"
        self._tell(pb.CONTAINER_STOPPED_EVENT, container.id, sandbox=container.sandbox)

    def _remove(self, container: Container) -> None:
        self._end(container, exit_code=137)
        del self.containers[container.id]
        self._tell(pb.CONTAINER_DELETED_EVENT, container.id, sandbox=container.sandbox)

    def _tell(self, kind: "pb.ContainerEventType.ValueType", container_id: str, *, sandbox: Sandbox) -> None:
        if self.behaviour.tells_events:
            statuses = (item.status() for item in self._containers_in(sandbox.id))
            self.on_event(
                pb.ContainerEventResponse(
                    container_id=container_id,
                    container_event_type=kind,
                    created_at=self._now(),
                    pod_sandbox_status=sandbox.status(),
                    containers_statuses=statuses,
                )
            )

    def _new_id(self) -> str:
        return f"{next(self._ids):064x}"

    def _now(self) -> int:
        self._last_time = max(time.time_ns(), self._last_time + 1)
        return self._last_time


def _mount_images(config: pb.ContainerConfig) -> None:
    """As containerd does (``mutateImageMount``): it stores in the config where it has mounted the image."""
    for mount in config.mounts:
        if not mount.HasField("image"):
            continue
        if mount.host_path:
            raise RefusedError(grpc.StatusCode.UNKNOWN, f"hostpath must be empty while mount image: {mount}")
        mount.host_path = IMAGE_VOLUME


def go_json(message: Message) -> dict[str, Any]:
    """Write a message as Go's encoding/json does with gogo's struct tags, which is containerd's form.

    Field names as in the proto, enums and 64-bit integers as numbers, empty values left out, bytes as plain text
    (containerd 2.1 has ``string`` where the proto now has ``bytes``).
    """
    return {
        descriptor.name: dict(value)
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry
        else [_go_value(item) for item in value]
        if descriptor.is_repeated
        else _go_value(value)
        for descriptor, value in message.ListFields()
    }


def _go_value(value: object) -> object:
    if isinstance(value, Message):
        return go_json(value)
    return value.decode() if isinstance(value, bytes) else value


def _reserved_name(container: pb.ContainerMetadata, *, pod: pb.PodSandboxMetadata) -> str:
    return f"{container.name}_{pod.name}_{pod.namespace}_{pod.uid}_{container.attempt}"
