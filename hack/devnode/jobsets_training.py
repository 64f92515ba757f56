"""Run a JobSet that trains: one driver and some workers, two replicated Jobs of different templates.

Workers count steps into checkpoints on a volume that all nodes see, and resume from there after every restart. When
there is a goal (``Training.set_goal``) they end at it, and the driver after them. The driver also detects a lost peer:
its collective times out, when the test triggers it, and it exits with 1.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hack.devnode import images, jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.node import DevNode
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.podresources.client import PodResourcesClient
from kubemend.agent.model.workloads import ContainerState, PodUid
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.controller.jobset.children import naming

CONTAINER = "train"
DRIVER = "driver-0-0"
_SHARED = "/shared"
_LOOK_SECONDS = 0.02

_CHECKPOINT = 'echo "$step" > "$mine.new" && mv "$mine.new" "$mine.step"'
_BEGIN = f"""
mine={_SHARED}/$(hostname)
step=$(cat "$mine.step" 2>/dev/null || echo 0)
echo "$step $NODE" >> "$mine.lives"
echo "resumes from step $step on $NODE"
"""
WORKER = f"""{_BEGIN}
while true; do
  goal=$(cat {_SHARED}/goal 2>/dev/null)
  if [ -n "$goal" ] && [ "$step" -ge "$goal" ]; then break; fi
  step=$((step + 1))
  {_CHECKPOINT}
  sleep 0.05
done
touch "$mine.done"
echo "done at step $step"
"""
COORDINATE = f"""{_BEGIN}
while [ "$(ls {_SHARED} | grep -c 'done$')" -lt "$WORKERS" ]; do
  if [ -e {_SHARED}/peer-lost ]; then rm {_SHARED}/peer-lost; echo "a collective timed out"; exit 1; fi
  step=$((step + 1))
  {_CHECKPOINT}
  sleep 0.1
done
echo "all $WORKERS workers are done"
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Life:
    """Describe one run of a member's program: the step that it resumed from, and its node."""

    step: int
    node: str


class Training:
    """Manage one such JobSet; create it with ``Training.on``.

    Members are named as their hosts, without the JobSet's name.
    """

    def __init__(self, cluster: Cluster, api: kube.KubeClient, name: str, *, workers: int) -> None:
        self.name = name
        self.gang = gangs.GangKey(NAMESPACE, "JobSet", name)
        self.workers = tuple(f"workers-0-{index}" for index in range(workers))
        self.members = (DRIVER, *self.workers)
        self._cluster = cluster
        self._api = api
        self._shared = cluster.first.layout.root / "jobsets" / name

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, cluster: Cluster, api: kube.KubeClient, name: str, *, workers: int = 3) -> AsyncIterator[Self]:
        """Run it for the length of the block; yields it when all members train."""
        made = cls(cluster, api, name, workers=workers)
        made._shared.mkdir(parents=True)
        try:
            await api.create(jobsets.JOBSETS, made.manifest())
            await made.trains()
            yield made
        finally:
            await jobsets.delete(api, name)

    def manifest(self) -> Json:
        """Return the JobSet, as a user would write it."""
        driver = self._pod(COORDINATE, {"WORKERS": str(len(self.workers))})
        worker = self._pod(WORKER, {}, gpus=1)
        return jobsets.jobset(
            self.name,
            {"name": "driver", "replicas": 1, "template": jobsets.job(members=1, pod=driver)},
            {"name": "workers", "replicas": 1, "template": jobsets.job(members=len(self.workers), pod=worker)},
            max_restarts=10,
            coordinator={"replicatedJob": "driver"},
        )

    # --- its observable state

    async def jobset(self) -> Json:
        """Return the JobSet."""
        return await self._api.get(f"{jobsets.JOBSETS}/{self.name}")

    async def condition(self, kind: str) -> Json:
        """Return a condition of the JobSet; empty if it has none of that type."""
        conditions = ((await self.jobset()).get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    async def pods(self) -> Mapping[str, Json]:
        """Return the current pod of each member."""
        found = (await self._api.list(jobsets.PODS, params=jobsets.of(self.name))).items
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        alive = [each for each in alive if (each.get("status") or {}).get("phase") != "Failed"]
        return {each["spec"]["hostname"].removeprefix(f"{self.name}-"): each for each in alive}

    async def uids(self) -> dict[str, str]:
        """Return the UID of each member's pod."""
        return {member: pod["metadata"]["uid"] for member, pod in (await self.pods()).items()}

    async def node_of(self, member: str) -> DevNode:
        """Return a member's node."""
        name = (await self.pods())[member]["spec"]["nodeName"]
        return next(each for each in self._cluster.nodes if each.name == name)

    def step(self, member: str) -> int:
        """Return a member's checkpoint."""
        path = self._shared / f"{self.name}-{member}.step"
        return int(path.read_text()) if path.exists() else 0

    def steps(self) -> dict[str, int]:
        """Return all members' checkpoints."""
        return {member: self.step(member) for member in self.members}

    def lives(self, member: str) -> tuple[Life, ...]:
        """Return all runs of a member's program, oldest first."""
        path = self._shared / f"{self.name}-{member}.lives"
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(Life(int(step), node) for step, node in (line.split() for line in lines))

    async def pid(self, member: str) -> int:
        """Return the host's pid of a member's program."""
        pod, node = (await self.pods())[member], await self.node_of(member)
        async with CriClient(str(node.layout.containerd_socket)) as cri:
            views = await cri.list_containers(pod_uid=PodUid(pod["metadata"]["uid"]), name=CONTAINER)
            (running,) = [each for each in views if each.state is ContainerState.RUNNING]
            pid = (await cri.container_status(running.id)).pid
        assert pid is not None, f"{member} does not run"
        return pid

    async def gpu(self, member: str) -> int:
        """Return the number, on its node, of the GPU that a member holds."""
        pod, node = (await self.pods())[member], await self.node_of(member)
        socket = str(node.kubelet.pod_resources_socket)
        async with PodResourcesClient(socket, report=lambda _: None) as pod_resources:
            held = await pod_resources.list()
        assert held.known, f"kubelet's pod-resources socket {socket} does not answer"
        uuids = {uuid for item in held.items if item.pod_name == pod["metadata"]["name"] for uuid in item.devices}
        return min(node.gpu_uuids.index(uuid) for uuid in uuids)

    async def trains(self, *, timeout: float = 120.0) -> None:
        """Wait until each member makes further steps, and its pod is shown running. Raises TimeoutError."""
        before = self.steps()

        async def all_do() -> bool:
            ahead = all(self.step(member) > before[member] for member in self.members)
            pods = await self.pods() if ahead else {}
            return len(pods) == len(self.members) and all(map(_runs, pods.values()))

        await self.until(all_do, what="all members training", timeout=timeout)

    async def until(self, holds: Callable[[], Awaitable[bool]], *, what: str, timeout: float = 120.0) -> None:
        """Wait until it holds. Raises TimeoutError, with the state of the JobSet."""
        try:
            async with asyncio.timeout(timeout):
                while not await holds():  # noqa: ASYNC110 - files and objects together have no event
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            told = (await self.jobset()).get("status")
            raise TimeoutError(f"{what} did not come within {timeout:g} s; {self.steps()}; {told}") from error

    # --- actions on it

    async def kill(self, member: str) -> int:
        """SIGKILL a member's program; return the moment before it."""
        pid = await self.pid(member)
        moment = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return moment

    def lose_peer(self) -> None:
        """Have the driver's collective time out."""
        (self._shared / "peer-lost").touch()

    def set_goal(self, *, further: int) -> int:
        """Have all workers end ``further`` steps after the farthest one; return that step."""
        goal = max(self.step(member) for member in self.workers) + further
        draft: Path = self._shared / "goal.new"
        draft.write_text(str(goal))
        draft.rename(self._shared / "goal")
        return goal

    def _pod(self, script: str, environment: Mapping[str, str], *, gpus: int = 0) -> Json:
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        container: Json = {
            "name": CONTAINER,
            "image": images.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "env": [node, *({"name": key, "value": text} for key, text in environment.items())],
            "volumeMounts": [{"name": "shared", "mountPath": _SHARED}],
        }
        spread: Json = {}
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
            labels = {gangs.JOBSET_NAME: self.name, naming.REPLICATED_JOB_NAME: "workers"}
            apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            spread = {"topologySpreadConstraints": [{**apart, "labelSelector": {"matchLabels": labels}}]}
        return {
            "spec": {
                **spread,
                "restartPolicy": "OnFailure",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container],
                "volumes": [{"name": "shared", "hostPath": {"path": str(self._shared)}}],
            }
        }


def _runs(pod: Json) -> bool:
    """Return whether the API shows a pod's program running."""
    states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    return bool(states) and all("running" in each for each in states)
