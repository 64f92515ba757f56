"""Run a pod without a GPU that writes heartbeats (``kubemend.io/heartbeat-file``) until a test stops it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

from bench.faults import looking
from bench.faults.stage import Stage
from hack.devnode import images
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid
from kubemend.common.kube import errors, paths

VOLUME: Final = "/reports"
"""Mount point of the pod's volume, whose files control and report its behaviour."""

_NAME: Final = "worker"
_SILENT: Final = "silent"
_STARTED: Final = "started"
_TERMED: Final = "termed"
_FILE: Final = "/beat"
_SCRIPT: Final = f"""
trap 'touch {VOLUME}/{_TERMED}' TERM
touch {VOLUME}/{_STARTED}
while true; do
  [ -e {VOLUME}/{_SILENT} ] || touch {_FILE}
  sleep 0.1
done
"""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Beating:
    """Manage one pod. ``first`` is its first container."""

    def __init__(self, name: str, *, namespace: str, uid: str, stage: Stage) -> None:
        self.name = name
        self.uid = uid
        self.first = ContainerId("")
        self._namespace = namespace
        self._stage = stage
        pod = stage.nodes[0].layout.kubelet_root / "pods" / uid
        self._volume = pod / "volumes" / "kubernetes.io~empty-dir" / "reports"

    @classmethod
    @contextlib.asynccontextmanager
    async def on(
        cls,
        stage: Stage,
        *names: str,
        namespace: str = "default",
        annotations: Mapping[str, str] = _NOTHING,
        change: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> AsyncIterator[Sequence[Self]]:
        """Run pods of these names on the first node for the length of the block; yields them beating.

        ``annotations`` are added to those that opt in; ``change`` is applied to each whole pod.
        """
        await _has_namespace(stage, namespace)
        made: list[Self] = []
        try:
            for name in names:
                pod = _manifest(name, namespace=namespace, node=stage.nodes[0].name, annotations=annotations)
                change(pod)
                created = await stage.api.create(paths.collection("pods", namespace=namespace), pod)
                made.append(cls(name, namespace=namespace, uid=created["metadata"]["uid"], stage=stage))
            await asyncio.gather(*(pod.begins() for pod in made))
            yield made
        finally:
            await asyncio.gather(*(pod.ends() for pod in made))

    async def containers(self) -> tuple[ContainerSummary, ...]:
        """Return its running containers from the runtime."""
        views = await self._stage.cri(0).list_containers(pod_uid=PodUid(self.uid), name=_NAME)
        return tuple(view for view in views if view.state is ContainerState.RUNNING)

    def falls_silent(self) -> None:
        """Make it stop beating."""
        (self._volume / _SILENT).touch()

    def beats_again(self) -> None:
        """Let it, or its successor, beat again."""
        (self._volume / _SILENT).unlink()

    def was_termed(self) -> bool:
        """Return whether it has received SIGTERM, which it ignores."""
        return (self._volume / _TERMED).exists()

    async def replaced(self) -> ContainerId:
        """Wait until another container than the first one runs, and return it. Raises TimeoutError."""

        async def look() -> ContainerId | None:
            running = await self.containers()
            return running[0].id if len(running) == 1 and running[0].id != self.first else None

        return await looking.until(look, what=f"a successor in {self.name}")

    async def is_untouched(self) -> bool:
        """Return whether only its first container runs."""
        return [view.id for view in await self.containers()] == [self.first]

    async def begins(self) -> None:
        """Wait until it runs. Raises TimeoutError."""

        async def look() -> ContainerId | None:
            running = await self.containers()  # the API may be ahead of the runtime
            return running[0].id if running and (self._volume / _STARTED).exists() else None

        self.first = await looking.until(look, what=f"{self.name} that runs")

    async def ends(self) -> None:
        """Delete it, and wait until nothing of it runs. Raises TimeoutError."""

        async def look() -> bool | None:
            return None if await self.containers() else True

        await self._stage.api.delete(paths.pod(self._namespace, self.name), options={"gracePeriodSeconds": 0})
        await looking.until(look, what=f"{self.name} gone")


async def _has_namespace(stage: Stage, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with contextlib.suppress(errors.ConflictError):
        await stage.api.create(paths.collection("namespaces"), body)


def _manifest(name: str, *, namespace: str, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    container = {
        "name": _NAME,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _SCRIPT],
        "volumeMounts": [{"name": "reports", "mountPath": VOLUME}],
    }
    asked = {
        "kubemend.io/restart": "InPlace",
        "kubemend.io/heartbeat-file": _FILE,
        "kubemend.io/heartbeat-timeout": "1s",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {**asked, **annotations}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            "volumes": [{"name": "reports", "emptyDir": {}}],
        },
    }
