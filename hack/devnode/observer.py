"""Observe a pod from outside the agent: in the API, in the runtime, on the volume, in the logs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hack.devnode import layout, patience
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

_NAMESPACE = "default"
_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold a pod's state at one moment.

    ``running`` lists, by container name, every container that runs for the runtime.
    """

    uid: str
    node: str
    ip: str
    phase: str
    sandbox: str
    running: Mapping[str, tuple[ContainerId, ...]]
    restart_counts: Mapping[str, int]
    container_ids: Mapping[str, str]
    conditions: Mapping[str, Mapping[str, str]]
    step: int
    init_runs: int

    def condition(self, kind: str) -> Mapping[str, str]:
        """Return one of kubemend's conditions, empty when the pod has none of that type."""
        return self.conditions.get(f"kubemend.io/{kind}", {})


class Observer:
    """Observe pods of one dev node. ``async with Observer.of(node)``."""

    def __init__(self, where: layout.NodeLayout, *, api: kube.KubeClient, cri: CriClient) -> None:
        self._where = where
        self.api = api
        self._cri = cri

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, where: layout.NodeLayout) -> AsyncIterator[Self]:
        """Connect to the node's API and runtime."""
        async with (
            kube.connect(kubeconfig=where.kubeconfig, deadlines=patience.API) as api,
            CriClient(str(where.containerd_socket), deadlines=patience.RUNTIME) as cri,
        ):
            yield cls(where, api=api, cri=cri)

    async def create(self, manifest: Mapping[str, Any]) -> None:
        """Create a pod."""
        await self.api.create(paths.collection("pods", namespace=_NAMESPACE), dict(manifest))

    async def delete(self, name: str) -> None:
        """Delete a pod at once, if there is one. A repeated call never deletes its successor of the same name."""
        path = paths.pod(_NAMESPACE, name)
        with contextlib.suppress(errors.NotFoundError):
            uid = (await self.api.get(path))["metadata"]["uid"]
            await self.api.delete(path, options={"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    async def see(self, name: str) -> Seen:
        """Read the state once. Raises KubeError or CriError."""
        pod = await self.api.get(paths.pod(_NAMESPACE, name))
        uid, status = pod["metadata"]["uid"], pod.get("status", {})
        running: dict[str, tuple[ContainerId, ...]] = {}
        for view in await self._cri.list_containers(pod_uid=PodUid(uid), state=ContainerState.RUNNING):
            running[view.ref.name] = (*running.get(view.ref.name, ()), view.id)
        sandboxes = [box.id for box in await self._cri.list_sandboxes(pod_uid=PodUid(uid)) if box.ready]
        statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return Seen(
            uid=uid,
            node=pod["spec"].get("nodeName", ""),
            ip=status.get("podIP", ""),
            phase=status.get("phase", ""),
            sandbox=" ".join(sandboxes),
            running=running,
            restart_counts={item["name"]: item["restartCount"] for item in statuses},
            container_ids={item["name"]: item.get("containerID", "").rpartition("/")[2] for item in statuses},
            conditions={item["type"]: item for item in status.get("conditions", ())},
            step=int(_text(self.volume(uid) / "step") or 0),
            init_runs=len(_text(self.volume(uid) / "init-runs").splitlines()),
        )

    async def until(self, name: str, holds: Callable[[Seen], bool], *, timeout: float, what: str) -> Seen:
        """Poll until it holds, less and less often. Raises TimeoutError, which names the missing state and the last
        one.
        """
        seen: Seen | None = None
        pause = _LOOK_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while True:
                    seen = await self.see(name)
                    if holds(seen):
                        return seen
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.1, _LONGEST_LOOK_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{what} did not come within {timeout:g} s; last seen: {seen}") from error

    async def pid(self, container: ContainerId) -> int:
        """Return the host's pid of a container's main process."""
        pid = (await self._cri.container_status(container)).pid
        assert pid is not None, f"container {container} does not run"
        return pid

    async def times(self, container: ContainerId) -> tuple[float, float]:
        """Return when a container started and finished (Unix seconds, 0: not yet), by the runtime's own clock."""
        info = await self._cri.container_status(container)
        return info.started_at / 1e9, info.finished_at / 1e9

    def volume(self, uid: str) -> Path:
        """Return the trainer's checkpoint volume on the host."""
        return self._where.pod_dir(uid) / "volumes" / "kubernetes.io~empty-dir" / "checkpoints"

    def log(self, name: str, uid: str, *, container: str, restart: int) -> str:
        """Return the log of one run of a container, as kubectl would show it with the runtime's stamps."""
        directory = self._where.pod_log_dir(namespace=_NAMESPACE, name=name, uid=uid)
        return (directory / container / f"{restart}.log").read_text()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
