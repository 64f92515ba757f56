"""Set up a fake runtime, a client and a watch on it, and one pod as kubelet would create it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri import client
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)
from kubemend.agent.restart import clone, intents
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.agent.sources.containers import ContainerWatch, ListingIntervals
from kubemend.common.components import ComponentStatus
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_server import CriServer
from tests.fakes.standbys import Standbys

POD = PodRef("default", "trainer-0", PodUid("uid-1"))
TARGET = ContainerRef(POD, "trainer")
LAST_WORDS = "the last words of the old one"
_SELDOM = ListingIntervals(audit=3600.0, poll=3600.0)
"""The stand-in runtime loses no event. The watch's audit, after a second, would be among the calls of a slow test."""


@dataclass
class CriEnv:
    """A fake runtime, a client of it, and all else that a swap needs."""

    server: CriServer
    cri: client.CriClient
    watch: ContainerWatch
    directory: Path
    statuses: list[ComponentStatus]
    sandbox_id: SandboxId = field(default=SandboxId(""))
    sandbox_config: api_pb2.PodSandboxConfig = field(default_factory=api_pb2.PodSandboxConfig)
    old: ContainerId = field(default=ContainerId(""))
    standbys: Standbys | None = None

    @property
    def termination_logs(self) -> Path:
        """Kubelet's directory for the target's termination-message files."""
        return self.directory / "pods" / POD.uid / "containers" / TARGET.name

    @property
    def termination_log(self) -> Path:
        """The old container's file."""
        return self.termination_logs / "0123abcd"

    @property
    def links(self) -> Path:
        return self.directory / "links"

    def actuator(self, *, time_limit: float = 10.0) -> SwapActuator:
        return SwapActuator(self.tools(time_limit=time_limit))

    def tools(self, *, time_limit: float = 10.0) -> ActuatorContext:
        files = HostFiles(symlink_dir=self.links)
        return ActuatorContext(
            runtime=self.cri, events=self.watch, files=files, time_limit=time_limit, standbys=self.standbys
        )

    def intent(self, *, order: intents.SwapOrder = intents.SwapOrder.STOP_FIRST, **changes: Any) -> intents.Intent:
        defaults: dict[str, Any] = {
            "id": "r1",
            "target": TARGET,
            "sandbox_id": self.sandbox_id,
            "old": self.old,
            "old_attempt": 0,
            "order": order,
            "reason": "Xid31",
            "created_at": 1000.0,
        }
        return intents.Intent(**defaults | changes)

    async def successor_spec(self, intent: intents.Intent, **changes: Any) -> SuccessorSpec:
        info = await self.cri.container_status(self.old)
        return SuccessorSpec(
            successor=clone.successor(info.config, intent=intent, runtime_env=info.runtime_env),
            sandbox_config=await self.cri.sandbox_config(self.sandbox_id),
            **changes,
        )

    async def resized_spec(self, intent: intents.Intent, **changes: Any) -> SuccessorSpec:
        """Return the spec of a successor whose config is more than a copy, so that it is compared with the old one."""
        made = await self.successor_spec(intent, **changes)
        return replace(made, successor=replace(made.successor, is_copy=False))

    async def containers(self) -> tuple[ContainerSummary, ...]:
        return await self.cri.list_containers(pod_uid=POD.uid, name=TARGET.name)

    async def running(self) -> list[ContainerSummary]:
        return [view for view in await self.containers() if view.state is ContainerState.RUNNING]

    async def kubelet_creates(self, *, attempt: int, name: str = TARGET.name, start: bool = True) -> ContainerId:
        """Act as kubelet when it finds the container missing or exited."""
        config = self.config(attempt=attempt, name=name)
        container_id = await self.cri.create_container(
            sandbox_id=self.sandbox_id, config=config, sandbox_config=self.sandbox_config
        )
        if start:
            await self.cri.start_container(container_id)
        return container_id

    def config(self, *, attempt: int, name: str = TARGET.name) -> api_pb2.ContainerConfig:
        return api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
            image=api_pb2.ImageSpec(image="busybox"),
            envs=[api_pb2.KeyValue(key="RANK", value=b"0")],
            mounts=[api_pb2.Mount(container_path="/dev/termination-log", host_path=str(self.termination_log))],
            labels={
                "io.kubernetes.pod.name": POD.name,
                "io.kubernetes.pod.namespace": POD.namespace,
                "io.kubernetes.pod.uid": POD.uid,
                "io.kubernetes.container.name": name,
            },
            annotations={
                "io.kubernetes.container.restartCount": str(attempt),
                "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            },
            log_path=f"{name}/{attempt}.log",
        )


@contextlib.asynccontextmanager
async def cri_env_in(tmp_path: Path) -> AsyncIterator[CriEnv]:
    """Create a pod whose one container runs as attempt 0."""
    (tmp_path / "links").mkdir()
    (tmp_path / "logs" / "trainer").mkdir(parents=True)
    for attempt in range(4):
        (tmp_path / "logs" / "trainer" / f"{attempt}.log").touch()
    statuses: list[ComponentStatus] = []
    deadlines = client.Deadlines(read=60.0, margin=60.0, silence=0.1)
    async with (
        CriServer(str(tmp_path / "cri.sock")) as server,
        client.CriClient(server.endpoint, deadlines=deadlines) as cri,
    ):
        watch = ContainerWatch(cri, report=statuses.append, intervals=_SELDOM)
        cri_env = CriEnv(server=server, cri=cri, watch=watch, directory=tmp_path, statuses=statuses)
        cri_env.termination_logs.mkdir(parents=True)
        cri_env.termination_log.write_text(LAST_WORDS)
        cri_env.sandbox_config = api_pb2.PodSandboxConfig(
            metadata=api_pb2.PodSandboxMetadata(name=POD.name, uid=POD.uid, namespace=POD.namespace),
            labels={
                "io.kubernetes.pod.name": POD.name,
                "io.kubernetes.pod.namespace": POD.namespace,
                "io.kubernetes.pod.uid": POD.uid,
            },
            log_directory=str(tmp_path / "logs"),
        )
        answer = server.runtime.run_pod_sandbox(api_pb2.RunPodSandboxRequest(config=cri_env.sandbox_config))
        cri_env.sandbox_id = SandboxId(answer.pod_sandbox_id)
        cri_env.old = await cri_env.kubelet_creates(attempt=0)
        cri_env.standbys = Standbys(server.runtime, old=cri_env.old)
        watching = asyncio.create_task(watch.run(), name="watch")
        await server.reader_present()
        await watch.until_listed()
        server.calls.clear()
        yield cri_env
        assert not cri_env.standbys.held, "a successor stays held"
        assert not cri_env.standbys.imports, "a successor stays held at its driver"
        assert not (cri_env.standbys.frozen and cri_env.standbys.old_runs()), "the old container stays frozen"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
