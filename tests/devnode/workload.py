"""Run programs that train, as members of any owner's pods, and see from outside what became of them.

Workers count steps into checkpoints on a volume that all nodes see, and resume from there after every restart. When
there is a goal (``Workload.set_goal``) they end at it.
"""

import abc
import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.devnode import images, patience
from hack.devnode.cluster import Cluster
from hack.devnode.node import DevNode
from hack.fakenvml import control as nvml_control
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerState, PodUid
from kubemend.common.kube import client as kube

CONTAINER = "train"
SHARED = "/shared"
_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.2

CHECKPOINT = 'echo "$step" > "$mine.new" && mv "$mine.new" "$mine.step"'
BEGIN = f"""
mine={SHARED}/$(hostname)
step=$(cat "$mine.step" 2>/dev/null || echo 0)
echo "$step $NODE" >> "$mine.lives"
echo "resumes from step $step on $NODE"
"""
WORKER = f"""{BEGIN}
while true; do
  goal=$(cat {SHARED}/goal 2>/dev/null)
  if [ -n "$goal" ] && [ "$step" -ge "$goal" ]; then break; fi
  step=$((step + 1))
  {CHECKPOINT}
  sleep 0.05
done
touch "$mine.done"
echo "done at step $step"
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Life:
    """Describe one run of a member's program: the step that it resumed from, and its node."""

    step: int
    node: str


class Workload(abc.ABC):
    """See and act on the members of a training. A member has a name that its replacement has, too, where it can."""

    container_name = CONTAINER

    def __init__(self, cluster: Cluster, api: kube.KubeClient, shared: Path) -> None:
        """``shared`` is a directory of the machine, for the checkpoints."""
        self._cluster = cluster
        self._api = api
        self._shared = shared

    @abc.abstractmethod
    async def pods(self) -> Mapping[str, Json]:
        """Return the current pod of each member."""

    @abc.abstractmethod
    async def status(self) -> Any:
        """Return the owner's status, for messages of errors."""

    @abc.abstractmethod
    def host(self, member: str) -> str:
        """Return the host name of a member's pod."""

    @property
    @abc.abstractmethod
    def workers(self) -> tuple[str, ...]:
        """Return the members that run ``WORKER``."""

    @property
    def members(self) -> tuple[str, ...]:
        """Return all members."""
        return self.workers

    # --- its observable state

    async def uids(self) -> dict[str, str]:
        """Return the UID of each member's pod."""
        return {member: pod["metadata"]["uid"] for member, pod in (await self.pods()).items()}

    async def node_of(self, member: str) -> DevNode:
        """Return a member's node."""
        name = (await self.pods())[member]["spec"]["nodeName"]
        return next(each for each in self._cluster.nodes if each.name == name)

    def step(self, member: str) -> int:
        """Return a member's checkpoint."""
        path = self._shared / f"{self.host(member)}.step"
        return int(path.read_text()) if path.exists() else 0

    def steps(self) -> dict[str, int]:
        """Return all members' checkpoints."""
        return {member: self.step(member) for member in self.members}

    def lives(self, member: str) -> tuple[Life, ...]:
        """Return all runs of a member's program, oldest first."""
        path = self._shared / f"{self.host(member)}.lives"
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(Life(int(step), node) for step, node in (line.split() for line in lines))

    async def pid(self, member: str) -> int:
        """Return the host's pid of a member's program."""
        pod, node = (await self.pods())[member], await self.node_of(member)
        async with CriClient(str(node.layout.containerd_socket), deadlines=patience.RUNTIME) as cri:
            views = await cri.list_containers(pod_uid=PodUid(pod["metadata"]["uid"]), name=self.container_name)
            (running,) = [each for each in views if each.state is ContainerState.RUNNING]
            pid = (await cri.container_status(running.id)).pid
        assert pid is not None, f"{member} does not run"
        return pid

    async def gpu(self, member: str) -> int:
        """Return the number, on its node, of the GPU that a member holds."""
        pod, node = (await self.pods())[member], await self.node_of(member)
        return await node.first_gpu(pod["metadata"]["name"])

    async def trains(self, *, timeout: float = 120.0) -> None:
        """Wait until each member makes further steps, and its pod is shown running. Raises TimeoutError."""
        before = self.steps()

        async def all_do() -> bool:
            ahead = all(self.step(member) > before[member] for member in self.members)
            pods = await self.pods() if ahead else {}
            return len(pods) == len(self.members) and all(map(_runs, pods.values()))

        await self.until(all_do, what="all members training", timeout=timeout)

    async def until(self, holds: Callable[[], Awaitable[bool]], *, what: str, timeout: float = 120.0) -> None:
        """Poll until it holds, less and less often. Raises TimeoutError, with the owner's status."""
        pause = _LOOK_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while not await holds():
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.1, _LONGEST_LOOK_SECONDS)
        except TimeoutError as error:
            reported = await self.status()
            raise TimeoutError(f"{what} did not come within {timeout:g} s; {self.steps()}; {reported}") from error

    # --- actions on it

    async def kill(self, member: str) -> int:
        """SIGKILL a member's program; return the moment before it."""
        pid = await self.pid(member)
        moment = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return moment

    async def write_xid(self, member: str, code: int) -> None:
        """Write an Xid on the GPU that a member holds into its node's kernel log, with its program's pid."""
        hit, gpu, pid = await self.node_of(member), await self.gpu(member), await self.pid(member)
        hit.kernel_log.write_xid(code, pci=nvml_control.kernel_address(gpu), pid=pid, name="sh", text="made up")

    def set_goal(self, *, further: int) -> int:
        """Have all workers end ``further`` steps after the farthest one; return that step."""
        goal = max(self.step(member) for member in self.workers) + further
        draft: Path = self._shared / "goal.new"
        draft.write_text(str(goal))
        draft.rename(self._shared / "goal")
        return goal

    def container(self, script: str, environment: Mapping[str, str], *, gpus: int = 0) -> Json:
        """Return a member's container."""
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        container: Json = {
            "name": self.container_name,
            "image": images.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "env": [node, *({"name": key, "value": text} for key, text in environment.items())],
            "volumeMounts": [{"name": "shared", "mountPath": SHARED}],
        }
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        return container

    def pod_spec(self, container: Json, *, restart_policy: str = "OnFailure") -> Json:
        """Return the spec of a member's pod, with its one container."""
        return {
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            "volumes": [{"name": "shared", "hostPath": {"path": str(self._shared)}}],
        }


def apart(labels: Mapping[str, str]) -> Json:
    """Return the fields of a pod spec by which the scheduler spreads the pods with these labels over the nodes."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": dict(labels)}}]}


def _runs(pod: Json) -> bool:
    """Return whether the API shows a pod's program running."""
    states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    return bool(states) and all("running" in each for each in states)
