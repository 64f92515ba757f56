"""Provide a node with its agent, on which pods are restarted by every strategy, and the checks of each restart."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from hack.devnode import images, node, patience, readyz, trainer, watching
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.control import client, messages
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.agent.restart import clone, overrides
from kubemend.agent.restart.intents import Strategy
from kubemend.common import grpcio
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import eventually
from tests.scenarios import dev_nodes

Json = dict[str, Any]

MAIN: Final = "main"
DATA: Final = "/data"
SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.02
STRATEGIES: Final = (Strategy.SWAP, *(() if dev_nodes.ON_CRIO else (Strategy.RERUN,)), Strategy.RESET)
LOOP: Final = f"echo up >> {DATA}/up; while :; do sleep 0.05; done"
ALONE: Final = trainer.leased(LOOP, name=MAIN, port=7101, volume=DATA)
"""``LOOP``, which records in ``trainer.OVERLAPS`` if it begins before its predecessor, frozen or not, is dead."""
_OPTED_IN: Final = {"kubemend.io/restart": "InPlace"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod at one moment: its object, and its containers that run for the runtime."""

    pod: Json
    running: tuple[ContainerId, ...]
    sandboxes: tuple[str, ...]

    @property
    def uid(self) -> PodUid:
        """Its identity."""
        return PodUid(self.pod["metadata"]["uid"])

    @property
    def status(self) -> Json:
        """Its status."""
        found: Json = self.pod.get("status") or {}
        return found

    @property
    def main(self) -> Json:
        """Return kubelet's status of its main container."""
        statuses = self.status.get("containerStatuses") or ()
        return next((each for each in statuses if each["name"] == MAIN), {})

    @property
    def restarts(self) -> int:
        """Return how often the main container was restarted by kubelet's count."""
        return int(self.main.get("restartCount", 0))

    @property
    def last_words(self) -> str:
        """Return the previous main container's termination message from kubelet."""
        return str(self.main.get("lastState", {}).get("terminated", {}).get("message", ""))

    @property
    def shown(self) -> str:
        """The main container that kubelet shows."""
        return str(self.main.get("containerID", "")).rpartition("/")[2]

    @property
    def is_ready(self) -> bool:
        """Return whether it is Ready, and kubelet shows the one main container that runs."""
        conditions = {each["type"]: each["status"] for each in self.status.get("conditions") or ()}
        return conditions.get("Ready") == "True" and self.running == (self.shown,)


@dataclass(frozen=True, slots=True)
class Board:
    """The node with its agent."""

    dev: node.DevNode
    api: kube.KubeClient
    cri: CriClient
    runtime: "api_pb2_grpc.RuntimeServiceAsyncStub"
    state: Path
    played: list[str] = field(default_factory=list)
    early: set[str] = field(default_factory=set)
    """Probed containers that kubelet showed before they ran. Its probes fail them for that, and it restarts each once
    more ("What remains possible" in docs/architecture.md).
    """
    copied: dict[PodUid, ContainerId] = field(default_factory=dict)
    """Kubelet's container that was adopted last, by pod."""

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, dev: node.DevNode, *extra: str, state: Path) -> AsyncIterator[Self]:
        """Run an agent on a node, with ``extra`` arguments, and yield once it is ready."""
        async with cls.of(dev, state=state) as made, dev.agent(f"--state-dir={state}", *extra) as agent:
            await readyz.until_ready(agent)
            yield made

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, dev: node.DevNode, *, state: Path) -> AsyncIterator[Self]:
        """Connect to a node, whose agent has that state directory."""
        socket = str(dev.layout.containerd_socket)
        async with (
            kube.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as api,
            CriClient(socket, deadlines=patience.RUNTIME) as cri,
            grpcio.unix_channel(socket) as channel,
        ):
            yield cls(dev, api, cri, api_pb2_grpc.RuntimeServiceStub(channel), state)

    @contextlib.asynccontextmanager
    async def pod(self, name: str, script: str = LOOP, *, spec: Json | None = None, **main: Any) -> AsyncIterator[Seen]:
        """Run a pod that has opted in for the length of the block, once it is Ready.

        ``main`` are its container's fields, and the pod's ``annotations``.
        """
        await self.api.create(paths.collection("pods", namespace="default"), self.manifest(name, script, spec, main))
        try:
            ready = await self.until(name, lambda seen: seen.is_ready, what="Ready")
            async with contextlib.AsyncExitStack() as stack:
                if main.keys() & {"livenessProbe", "startupProbe"}:
                    await stack.enter_async_context(self._watched(name))
                yield ready
        finally:
            await self.api.delete(paths.pod("default", name), options={"gracePeriodSeconds": 0})

    def manifest(self, name: str, script: str, spec: Json | None, main: Json) -> Json:
        """Return the pod."""
        fields = dict(main)
        mounts = [{"name": "data", "mountPath": DATA}, *fields.pop("volumeMounts", ())]
        annotations = _OPTED_IN | fields.pop("annotations", {})
        spec = dict(spec or {})
        volumes = [{"name": "data", "emptyDir": {}}, *spec.pop("volumes", ())]
        container = {
            "name": MAIN,
            "image": images.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "volumeMounts": mounts,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {
                "nodeName": self.dev.name,
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container | fields],
                "volumes": volumes,
                **spec,
            },
        }

    @contextlib.asynccontextmanager
    async def _watched(self, name: str) -> AsyncIterator[None]:
        """Collect the containers that are shown before they run, for the length of the block."""

        async def look() -> None:
            pods, only = paths.collection("pods", namespace="default"), {"fieldSelector": f"metadata.name={name}"}
            async with contextlib.aclosing(watching.collection(self.api, pods, params=only)) as states:
                async for state in states:
                    for seen in (Seen(pod, (), ()) for pod in state):
                        if seen.shown and "waiting" in seen.main["state"]:
                            self.early.add(seen.shown)

        async with asyncio.TaskGroup() as group:
            watch = group.create_task(look(), name="containers shown before they run")
            yield
            watch.cancel()

    async def see(self, name: str) -> Seen:
        """Read the state once. Raises KubeError or CriError."""
        pod = await self.api.get(paths.pod("default", name))
        uid = PodUid(pod["metadata"]["uid"])
        running = await self.cri.list_containers(pod_uid=uid, name=MAIN, state=ContainerState.RUNNING)
        sandboxes = await self.cri.list_sandboxes(pod_uid=uid)
        return Seen(pod, tuple(each.id for each in running), tuple(each.id for each in sandboxes if each.ready))

    async def until(self, name: str, holds: Callable[[Seen], bool], *, what: str) -> Seen:
        """Poll until it holds. Raises TimeoutError, with the missing state and the last one."""
        seen: Seen | None = None
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    seen = await self.see(name)
                    if holds(seen):
                        return seen
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{name} was never {what}; last seen: {seen}") from error

    async def asked(self, name: str, strategy: Strategy, *, grace: float | None = None) -> list[Json]:
        """Request a restart from the agent, and return its progress up to its end."""
        asked = overrides.RestartOverrides(strategy=strategy, containers=frozenset({MAIN}), grace_seconds=grace)
        if strategy is not Strategy.SWAP:
            asked = overrides.RestartOverrides(strategy=strategy, grace_seconds=grace)
        request = messages.RestartRequest("default", name, asked, reason="a column of the matrix")
        async with contextlib.aclosing(client.restart(request, socket=self.state / messages.SOCKET)) as events:
            return [event async for event in events]

    async def restarted(self, name: str, strategy: Strategy, before: Seen, *, grace: float | None = None) -> Seen:
        """Restart a pod, check what must hold after every restart, and return its state."""
        early = set(self.early)
        reported = await self.asked(name, strategy, grace=grace)
        assert reported[-1].get("ok"), reported
        assert [each["verified"] for each in reported if each["event"] == "settled"] == [True], reported
        after = await self.until(
            name,
            lambda seen: seen.is_ready and seen.running != before.running,
            what=f"Ready after its {strategy.value}",
        )
        assert after.uid == before.uid
        assert after.status["podIP"] == before.status["podIP"]
        assert (after.sandboxes, after.status["phase"]) == (before.sandboxes, "Running")
        by_kubelet = reported[-1]["reason"] not in ("Swapped", "Rerun")
        assert after.restarts > before.restarts, reported
        again = after.restarts - before.restarts - 1 - by_kubelet
        await eventually.true(lambda: len(self.early - early) >= again)  # the watch may be later than ``after``
        self.played.append(strategy.value)
        if reported[-1]["reason"] in ("Adopted", "Rerun") and not await self._is_ours(after.running[0]):
            self.copied[after.uid] = after.running[0]
        return after

    async def _is_ours(self, container: ContainerId) -> bool:
        return clone.RESTART_ID_ANNOTATION in (await self.cri.container_status(container)).annotations

    def was_copied(self, seen: Seen) -> bool:
        """Return whether the running container is kubelet's, which was faster in the last restart."""
        return self.copied.get(seen.uid) in seen.running

    def overlapped(self, seen: Seen) -> bool:
        """Return whether a program of a pod that runs ``ALONE`` began before its predecessor was dead.

        Kubelet's copy of a successor may: it is adopted ("What remains possible" in docs/architecture.md).
        """
        return (self.volume(seen) / trainer.OVERLAPS).exists() and seen.uid not in self.copied

    async def run(self, container: ContainerId, *command: str) -> str:
        """Run a command in a container, and return its output. Raises AssertionError when it fails."""
        answer = await self.cri.exec_sync(container, command, timeout=SECONDS)
        assert answer.exit_code == 0, answer
        return answer.stdout.decode()

    async def shown_by_runtime(self, container: ContainerId) -> api_pb2.ContainerStatus:
        """Return the runtime's status of a container."""
        return (await self.runtime.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=container))).status

    async def specification(self, container: ContainerId) -> Json:
        """Return the OCI configuration with which the runtime has created a container."""
        request = api_pb2.ContainerStatusRequest(container_id=container, verbose=True)
        found: Json = json.loads((await self.runtime.ContainerStatus(request)).info["info"])["runtimeSpec"]
        return found

    async def process(self, container: ContainerId) -> Path:
        """Return the directory in /proc of a running container's first process."""
        pid = (await self.cri.container_status(container)).pid
        assert pid
        return Path("/proc") / str(pid)

    def volume(self, seen: Seen) -> Path:
        """Return the pod's volume on the host."""
        return self.dev.layout.kubelet_root / "pods" / seen.uid / "volumes" / "kubernetes.io~empty-dir" / "data"
