"""Run a gang as JobSet creates it: the pods of one Indexed Job, spread over nodes; each a worker that records its life.

Nothing replaces lost members, as the Job controller does; call ``Gang.replace`` for that.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from hack.devnode import patience, pulse, watching
from hack.devnode.gang_objects import CONTAINER, NAMESPACE, Json, Shape, Template
from hack.devnode.node import DevNode
from hack.devnode.pulse import Barrier, Life
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.model import conditions
from kubemend.agent.model.workloads import ContainerState, ContainerSummary, PodUid
from kubemend.common import cgroupfs
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

_JOBS = paths.collection("jobs", namespace=NAMESPACE, group="batch")
_LOOK_SECONDS = 0.03
_OVER = ("Succeeded", "Failed")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_ALIVE_WITHIN = 100_000_000  # nanoseconds; a worker beats every 4 ms, and a busy machine delays it

_T = TypeVar("_T")


class Gang:
    """Manage one gang; create it with ``Gang.on``.

    Members are identified by index; a pod's host name is its member's name.
    """

    def __init__(self, name: str, *, nodes: Sequence[DevNode], shape: Shape, api: kube.KubeClient) -> None:
        root = nodes[0].layout.root
        self.template = Template(name, shape=shape, lives=root / "gangs" / name)
        self.nodes = [nodes[index % len(nodes)] for index in range(shape.members)]
        self._api = api
        self._job_uid = ""
        self._names: dict[int, str] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def on(
        cls, nodes: Sequence[DevNode], name: str, *, shape: Shape | None = None, timeout: float = 120.0
    ) -> AsyncIterator[Self]:
        """Run a gang for the length of the block; yields it when all members train. Member i is on node i, and so on.

        Raises TimeoutError.
        """
        async with kube.connect(kubeconfig=nodes[0].kubeconfig, deadlines=patience.API) as api:
            gang = cls(name, nodes=nodes, shape=shape or Shape(), api=api)
            began = time.monotonic_ns()
            try:
                await gang._create()
                await gang.all_running(since=began, timeout=timeout)
                await gang.find_pods(timeout=timeout)
                await gang.shown_running(timeout=timeout)
                yield gang
            finally:
                await gang._delete()

    # --- its observable state

    @property
    def size(self) -> int:
        """Return the number of its members."""
        return self.template.shape.members

    def lives(self) -> tuple[Life, ...]:
        """Return all lives of its members, oldest first."""
        return pulse.lives(self.template.lives)

    def step(self, index: int) -> int:
        """Return the step of a member's training."""
        return pulse.step(self.template.lives, self.template.member(index))

    async def pod(self, index: int) -> Json:
        """Return a member's pod. Raises errors.NotFoundError when it does not exist."""
        return await self._api.get(paths.pod(NAMESPACE, self._names[index]))

    async def pods(self) -> list[Json]:
        """Return all members' pods, in their order."""
        return [await self.pod(index) for index in range(self.size)]

    async def identities(self) -> list[tuple[str, str, str]]:
        """Return each member's pod UID, IP and node: a restart in place keeps them."""
        return [
            (pod["metadata"]["uid"], pod["status"].get("podIP", ""), pod["spec"]["nodeName"])
            for pod in await self.pods()
        ]

    async def containers(self, index: int) -> tuple[ContainerSummary, ...]:
        """Return the worker's containers in a member's pod, oldest first."""
        uid = PodUid((await self.pod(index))["metadata"]["uid"])
        async with CriClient(str(self.nodes[index].layout.containerd_socket), deadlines=patience.RUNTIME) as cri:
            return await cri.list_containers(pod_uid=uid, name=CONTAINER)

    async def pid(self, index: int) -> int:
        """Return the host's pid of a member's worker."""
        (pid,) = await self._pids(index)
        assert pid is not None, f"{self.template.member(index)} does not run"
        return pid

    async def devices(self, index: int) -> frozenset[str]:
        """Return the UUIDs of the GPUs that kubelet has given to a member."""
        return await self.nodes[index].kubelet.devices_of(self._names[index])

    async def is_frozen(self, index: int) -> bool:
        """Return whether the kernel holds a member's worker, which runs for the runtime.

        False while kubelet's own runs, too.
        """
        pids = await self._pids(index)
        if len(pids) != 1 or pids[0] is None:
            return False
        cgroup = Cgroup.of_process(pids[0], proc=_PROC, mounted_at=_CGROUPS)
        return cgroup is not None and cgroupfs.frozen([cgroup.path]) is True

    def running_since(self, moment: int) -> tuple[Life, ...]:
        """Return each member's life that began at or after a moment (``time.monotonic_ns``) and continues."""
        now = time.monotonic_ns()
        going_on = [life for life in self.lives() if life.began >= moment and now - life.last < _ALIVE_WITHIN]
        return tuple({life.member: life for life in going_on}.values())

    async def all_running(self, *, since: int, count: int | None = None, timeout: float = 120.0) -> tuple[Life, ...]:
        """Wait until ``count`` members (all) live that began at or after a moment. Raises TimeoutError."""
        wanted = self.size if count is None else count
        return await self.until(
            lambda: found if len(found := self.running_since(since)) >= wanted else None,
            what=f"{wanted} running workers of {self.template.name}",
            timeout=timeout,
        )

    async def shown_running(self, *, timeout: float = 120.0) -> None:
        """Wait until the API shows every unfinished member as it is in the runtime. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            for index in range(self.size):
                while not await self._is_shown_running(index):  # noqa: ASYNC110 - two sides are compared, not one event
                    await asyncio.sleep(_LOOK_SECONDS)

    async def launchers_followed(self, *, timeout: float = 120.0) -> None:
        """Wait until the pods' conditions show that agents follow the launchers of all members. Raises TimeoutError."""
        collection = paths.collection("pods", namespace=NAMESPACE)
        looks = watching.collection(self._api, collection)
        async with asyncio.timeout(timeout), contextlib.aclosing(looks) as opened:
            async for pods in opened:
                followed = {pod["metadata"]["name"] for pod in pods if _is_followed(pod)}
                if followed.issuperset(self._names.values()):
                    return

    async def over(self, index: int, *, timeout: float = 120.0) -> None:
        """Wait until the API shows that a member has finished. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while (await self.pod(index)).get("status", {}).get("phase") not in _OVER:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)

    async def started_by_kubelet(self) -> int:
        """Return how many of the running workers were started by kubelet, not by kubemend, after their predecessors."""
        now = [await self.containers(index) for index in range(self.size)]
        return sum(views[-1].attempt > 0 and views[-1].restart_id is None for views in now)

    async def until(self, look: Callable[[], _T | None], *, what: str, timeout: float = 120.0) -> _T:
        """Poll until there is a result, and return it. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout):
                while (found := look()) is None:  # noqa: ASYNC110 - a mapped file has no event for writes
                    await asyncio.sleep(_LOOK_SECONDS)
                return found
        except TimeoutError as error:
            raise TimeoutError(f"{what} did not come within {timeout:g} s; lives: {self.lives()}") from error

    def barrier(self, *, since: int) -> Barrier:
        """Return the relation of old and new lives around the round after a fault at ``since``."""
        return pulse.barrier(self.lives(), since=since)

    # --- actions on it

    async def end(self, index: int, *, exit_code: int) -> int:
        """Have a member's worker exit by itself, with 0 or 1; return the moment before it."""
        assert exit_code in (0, 1), "the worker supports these two"
        pid = await self.pid(index)
        moment = time.monotonic_ns()
        os.kill(pid, signal.SIGUSR2 if exit_code else signal.SIGUSR1)
        return moment

    async def kill(self, *indices: int) -> int:
        """SIGKILL members' workers, all at once; return the moment before it."""
        pids = [await self.pid(index) for index in indices]
        moment = time.monotonic_ns()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return moment

    async def kill_program(self, index: int) -> int:
        """SIGKILL the program that a member's launcher runs; return the moment before it."""
        main = await self.pid(index)
        (pid,) = _children(main)
        moment = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return moment

    async def delete(self, index: int) -> None:
        """Delete a member's pod, as a person or an eviction would."""
        await self._api.delete(paths.pod(NAMESPACE, self._names[index]))

    async def gone(self, index: int, uid: str, *, timeout: float = 120.0) -> None:
        """Wait until a member's pod of that UID is removed from the API. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while await self._exists(index, uid):  # noqa: ASYNC110 - a watch for one pod's end is not worth it
                await asyncio.sleep(_LOOK_SECONDS)

    async def replace(self, index: int, *, node: DevNode | None = None) -> None:
        """Recreate a member's pod under another name, as its Job would; on another ``node`` if given."""
        if node is not None:
            self.nodes[index] = node
        await self._create_pod(index)

    async def _pids(self, index: int) -> list[int | None]:
        """Return the host's pids of all of a member's workers that run for the runtime."""
        running = [each for each in await self.containers(index) if each.state is ContainerState.RUNNING]
        async with CriClient(str(self.nodes[index].layout.containerd_socket), deadlines=patience.RUNTIME) as cri:
            found: list[int | None] = []
            for each in running:
                with contextlib.suppress(NotFound):  # removed since the listing
                    found.append((await cri.container_status(each.id)).pid)
            return found

    async def _is_shown_running(self, index: int) -> bool:
        status = (await self.pod(index)).get("status", {})
        if status.get("phase") in _OVER:
            return True
        shown = {each["name"]: each.get("containerID", "") for each in status.get("containerStatuses", ())}
        running = [view.id for view in await self.containers(index) if view.state is ContainerState.RUNNING]
        return bool(status.get("podIP")) and [shown.get(CONTAINER, "").rpartition("/")[2]] == running

    # --- its objects

    async def find_pods(self, *, timeout: float = 120.0) -> None:
        """Find the current pods of its members: those created here. Raises TimeoutError when one has none."""

    async def _create(self) -> None:
        self.template.lives.mkdir(parents=True)
        job = await self._api.create(_JOBS, self.template.job_object())
        self._job_uid = job["metadata"]["uid"]
        async with asyncio.TaskGroup() as tasks:
            for index in range(self.size):
                tasks.create_task(self._create_pod(index), name=f"create-{index}")

    async def _create_pod(self, index: int) -> None:
        name = self._names[index] = f"{self.template.member(index)}-{secrets.token_hex(3)}"
        pod = self.template.pod(index, name=name, node=self.nodes[index].name, job_uid=self._job_uid)
        await self._api.create(paths.collection("pods", namespace=NAMESPACE), pod)

    async def _delete(self) -> None:
        """Delete all pods of the gang, and wait until they are removed: the next one needs their GPUs."""
        uids = {}
        for index, name in self._names.items():
            with contextlib.suppress(errors.NotFoundError):
                uids[index] = (await self._api.get(paths.pod(NAMESPACE, name)))["metadata"]["uid"]
                await self._api.delete(paths.pod(NAMESPACE, name), options={"gracePeriodSeconds": 0})
        for index, uid in uids.items():
            await self.gone(index, uid)
        if self._job_uid:
            await self._api.delete(f"{_JOBS}/{self.template.job}", options={"propagationPolicy": "Background"})

    async def _exists(self, index: int, uid: str) -> bool:
        try:
            pod = await self.pod(index)
        except errors.NotFoundError:
            return False
        return bool(pod["metadata"]["uid"] == uid)


def _is_followed(pod: Json) -> bool:
    return any(each["type"] == conditions.WARM_SPARE for each in pod.get("status", {}).get("conditions") or ())


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
