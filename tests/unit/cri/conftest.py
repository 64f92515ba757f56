"""Set up a stand-in runtime with one pod, and a client on it."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest

from kubemend.agent.clients.cri.client import CriClient, Deadlines
from kubemend.agent.model.workloads import ContainerId, PodUid
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_server import CriServer

POD_UID = PodUid("u")
_LABELS = {
    "io.kubernetes.pod.name": "p",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.uid": str(POD_UID),
}


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[CriServer]:
    """A runtime that behaves as containerd."""
    async with CriServer(str(tmp_path / "cri.sock")) as running:
        yield running


@pytest.fixture
async def cri(server: CriServer) -> AsyncIterator[CriClient]:
    """A client of it."""
    deadlines = Deadlines(read=60.0, change=60.0, margin=60.0, silence=0.2)
    async with CriClient(server.endpoint, deadlines=deadlines) as client:
        yield client


def create(server: CriServer, name: str = "trainer") -> ContainerId:
    """Create a container as kubelet would, in the pod's sandbox, creating that first if needed."""
    runtime = server.runtime
    pod = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name="p", uid=POD_UID, namespace="default"), labels=_LABELS
    )
    if not runtime.sandboxes:
        runtime.run_pod_sandbox(api_pb2.RunPodSandboxRequest(config=pod))
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=name), labels={**_LABELS, "io.kubernetes.container.name": name}
    )
    request = api_pb2.CreateContainerRequest(pod_sandbox_id=next(iter(runtime.sandboxes)), config=config)
    return ContainerId(runtime.create_container(request).container_id)


def start(server: CriServer, container_id: ContainerId) -> None:
    """Start a container as kubelet would."""
    server.runtime.start_container(api_pb2.StartContainerRequest(container_id=container_id))


def remove(server: CriServer, container_id: ContainerId) -> None:
    """Remove a container as kubelet would."""
    server.runtime.remove_container(api_pb2.RemoveContainerRequest(container_id=container_id))


class Reports:
    """Collects reported states; ``until`` waits for a matching one."""

    def __init__(self) -> None:
        self.seen: list[ComponentStatus] = []
        self._changed = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()

    def __call__(self, status: ComponentStatus) -> None:
        self.seen.append(status)
        notice = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def until(self, state: ComponentState, *, containing: str = "", after: int = 0) -> ComponentStatus:
        """Return the first report of that state and message among those after the first ``after``."""

        def found() -> ComponentStatus | None:
            wanted = (item for item in self.seen[after:] if item.state is state and containing in item.message)
            return next(wanted, None)

        async with self._changed, asyncio.timeout(60):
            await self._changed.wait_for(lambda: found() is not None)
        status = found()
        assert status is not None
        return status

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
