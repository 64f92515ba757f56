"""The calls that kubelet makes to the container runtime. Errors are those of ``agent.cri.errors``."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from agent.cri import answers, errors
from agent.model.workloads import ContainerState
from common import grpcio
from common.pb.runtime.v1 import api_pb2 as cri
from common.pb.runtime.v1 import api_pb2_grpc
from hack.devnode.kubelet import config
from hack.devnode.kubelet.observed import Observed, Runtime, Sandbox

DEADLINE = 120.0
"""Seconds for one call (kubelet's ``runtimeRequestTimeout``); a stop or an exec gets its own time on top."""

_MAX_MESSAGE = 4096


class CriRuntime:
    """One connection to the runtime's socket. Make it inside a running event loop."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._channel = grpcio.unix_channel(socket)
        self._stub = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._images = api_pb2_grpc.ImageServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def version(self) -> str:
        """Return the runtime's name and version, such as ``containerd://2.1.9``."""
        with self._errors("Version"):
            answer = await self._stub.Version(cri.VersionRequest(), timeout=DEADLINE)
        return f"{answer.runtime_name}://{answer.runtime_version}"

    async def list_containers(self) -> Sequence[cri.Container]:
        """List all containers that carry kubelet's labels."""
        with self._errors("ListContainers"):
            answer = await self._stub.ListContainers(cri.ListContainersRequest(), timeout=DEADLINE)
        return [item for item in answer.containers if config.POD_UID in item.labels]

    async def list_sandboxes(self) -> Sequence[cri.PodSandbox]:
        """List all sandboxes that carry kubelet's labels."""
        with self._errors("ListPodSandbox"):
            answer = await self._stub.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=DEADLINE)
        return [item for item in answer.items if config.POD_UID in item.labels]

    async def inspect(self, uid: str) -> Runtime:
        """Return everything that the runtime shows of one pod (kubelet's ``GetPodStatus``)."""
        label = {config.POD_UID: uid}
        with self._errors("ListPodSandbox"):
            sandboxes = await self._stub.ListPodSandbox(
                cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=label)), timeout=DEADLINE
            )
        with self._errors("ListContainers"):
            containers = await self._stub.ListContainers(
                cri.ListContainersRequest(filter=cri.ContainerFilter(label_selector=label)), timeout=DEADLINE
            )
        seen = [await self._observe(item) for item in containers.containers]
        nests = [await self._sandbox(item.id) for item in sandboxes.items]
        return Runtime.of(
            containers=[item for item in seen if item is not None],
            sandboxes=[item for item in nests if item is not None],
        )

    async def run_sandbox(self, wanted: cri.PodSandboxConfig) -> str:
        """Create and start a sandbox; return its id."""
        with self._errors("RunPodSandbox"):
            answer = await self._stub.RunPodSandbox(cri.RunPodSandboxRequest(config=wanted), timeout=2 * DEADLINE)
        return answer.pod_sandbox_id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and whatever runs in it."""
        with self._errors("StopPodSandbox"), _gone_is_done():
            await self._stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=DEADLINE)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a stopped sandbox."""
        with self._errors("RemovePodSandbox"), _gone_is_done():
            await self._stub.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=DEADLINE)

    async def create(self, *, sandbox_id: str, wanted: cri.ContainerConfig, sandbox: cri.PodSandboxConfig) -> str:
        """Create a container; return its id. Raises NameReserved when the name and attempt are taken."""
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=wanted, sandbox_config=sandbox)
        with self._errors("CreateContainer"):
            return (await self._stub.CreateContainer(request, timeout=DEADLINE)).container_id

    async def start(self, container_id: str) -> None:
        """Start a created container."""
        with self._errors("StartContainer"):
            await self._stub.StartContainer(cri.StartContainerRequest(container_id=container_id), timeout=DEADLINE)

    async def stop(self, container_id: str, *, grace: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL after ``grace`` seconds."""
        with self._errors("StopContainer"), _gone_is_done():
            await self._stub.StopContainer(
                cri.StopContainerRequest(container_id=container_id, timeout=grace), timeout=grace + DEADLINE
            )

    async def remove(self, container_id: str) -> None:
        """Remove a container."""
        with self._errors("RemoveContainer"), _gone_is_done():
            await self._stub.RemoveContainer(cri.RemoveContainerRequest(container_id=container_id), timeout=DEADLINE)

    async def run_in(self, container_id: str, command: Sequence[str], *, timeout: int) -> int:
        """Run a command in a container; return its exit code."""
        request = cri.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout)
        with self._errors("ExecSync"):
            return (await self._stub.ExecSync(request, timeout=timeout + DEADLINE)).exit_code

    async def image_ref(self, image: str) -> str | None:
        """Return the runtime's reference of an image, or None when it does not have it."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=image))
        with self._errors("ImageStatus"):
            answer = await self._images.ImageStatus(request, timeout=DEADLINE)
        return answer.image.id if answer.HasField("image") else None

    async def _observe(self, listed: cri.Container) -> Observed | None:
        try:
            with self._errors("ContainerStatus"):
                answer = await self._stub.ContainerStatus(
                    cri.ContainerStatusRequest(container_id=listed.id), timeout=DEADLINE
                )
        except errors.NotFound:
            return None  # removed since the listing
        return _observed(answer.status, sandbox_id=listed.pod_sandbox_id)

    async def _sandbox(self, sandbox_id: str) -> Sandbox | None:
        try:
            with self._errors("PodSandboxStatus"):
                answer = await self._stub.PodSandboxStatus(
                    cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id), timeout=DEADLINE
                )
        except errors.NotFound:
            return None
        status = answer.status
        return Sandbox(
            id=status.id,
            ready=status.state == cri.SANDBOX_READY,
            attempt=status.metadata.attempt,
            created_at=status.created_at,
            ip=status.network.ip if status.HasField("network") else None,
            host_network=status.linux.namespaces.options.network == cri.NODE,
        )

    @contextlib.contextmanager
    def _errors(self, call: str) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, call=call, endpoint=self._socket) from error


@contextlib.contextmanager
def _gone_is_done() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


def state_of(value: cri.ContainerState.ValueType) -> ContainerState:
    """Return our word for CRI's state."""
    return answers.STATES.get(value, ContainerState.UNKNOWN)


def _observed(status: cri.ContainerStatus, *, sandbox_id: str) -> Observed:
    state, exited = state_of(status.state), status.state == cri.CONTAINER_EXITED
    return Observed(
        id=status.id,
        name=status.labels.get(config.CONTAINER_NAME, ""),
        state=state,
        created_at=status.created_at,
        restart_count=_number(status.annotations.get(config.RESTART_COUNT, "")),
        hash=status.annotations.get(config.HASH, ""),
        exit_code=status.exit_code if exited else 0,
        started_at=status.started_at,
        finished_at=status.finished_at if exited else 0,
        reason=status.reason if exited else "",
        message=(status.message or _termination_message(status)) if exited else "",
        image=status.image.image,
        image_ref=status.image_ref,
        sandbox_id=sandbox_id,
    )


def _number(text: str) -> int:
    """A missing or broken restartCount counts as 0, as in kubelet."""
    return int(text) if text.isdigit() else 0


def _termination_message(status: cri.ContainerStatus) -> str:
    """What the container wrote to its termination log (policy ``File``)."""
    inside = status.annotations.get(config.MESSAGE_PATH)
    for mount in status.mounts:
        if inside and mount.container_path == inside:
            with contextlib.suppress(OSError), Path(mount.host_path).open("rb") as file:
                return file.read(_MAX_MESSAGE).decode(errors="replace")
    return ""
