"""Pods whose container ``main`` opens a library that stands in for the GPU driver's, and their swaps on a real runtime.

A file of the host is mounted as ``libcuda.so``, as the NVIDIA container toolkit does it.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from hack.devnode.layout import NodeLayout
from kubemend.agent.actuator.device_processes import NoDriver, NoProcesses
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold import driver_hold
from kubemend.agent.actuator.hold.driver_hold import DriverHold, mark_libraries
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, Timeouts
from kubemend.agent.actuator.hold.standby import Standby, Standbys
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, overlap
from kubemend.agent.restart.overlap import Obstacle
from kubemend.common import unix_sockets
from tests import eventually
from tests.devnode.pods import RunningPod, container
from tests.environments.swaps import Swaps, mark_owner

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
PATIENT = Timeouts(engaged=60.0)
"""On a busy machine a container's first exec may come long after the answer to its start."""
LIBRARY = "/usr/lib/libcuda.so.550.1"
RUN = "${KUBEMEND_RESTART_COUNT:-0}"
PROGRAM = (
    f"echo imports-{RUN} >> /data/runs; cat {LIBRARY} > /dev/null; echo driver-{RUN} >> /data/runs; "
    "trap 'exit 0' TERM; while :; do sleep 0.05; done"
)


class Gates(ReleaseGates):
    """Gates that stay shut until ``freed`` is set."""

    def __init__(self) -> None:
        super().__init__(driver=NoDriver(), processes=NoProcesses())
        self.reached = asyncio.Event()
        self.freed = asyncio.Event()

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        self.reached.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.freed.wait()
        return self.freed.is_set()


class ObservedStandbys(Standbys):
    """Standbys that show the last one."""

    last: Standby | None = None

    async def overlap(self, standby: Standby) -> Obstacle | None:
        self.last = standby
        return await super().overlap(standby)


class OverlapEnv:
    """Swap the container ``main`` of pods that have the driver's library."""

    def __init__(self, node: NodeLayout, swaps: Swaps, *, library: Path) -> None:
        socket = str(node.containerd_socket)
        self.cri = swaps.cri
        self.gates = Gates()
        self.standbys = ObservedStandbys(
            owner=mark_owner(node, directory=library.parent),
            holds=ExecHolds(socket_path=socket, proc=PROC, roots=swaps.cri, timeouts=PATIENT),
            proc=PROC,
            cgroup_root=CGROUPS,
        )
        self.library = library
        self.runtime = PROC / str(unix_sockets.listener(socket))
        self._node = node
        self._swaps = swaps
        self._held: list[DriverHold] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, node: NodeLayout, *, directory: Path) -> AsyncIterator[Self]:
        """Connect to a node's runtime, for the block; the library lies in ``directory``."""
        library = directory / "libcuda.so.550.1"
        library.write_text("driver")
        async with Swaps.on(str(node.containerd_socket)) as swaps:
            made = cls(node, swaps, library=library)
            try:
                yield made
            finally:
                for each in made._held:
                    each.release()

    def pod(self, *, mounts: dict[str, Path] | None = None) -> dict[str, Any]:
        """Return a pod's containers and volumes; ``mounts`` are places and files or directories of the host."""
        places = {LIBRARY: self.library} if mounts is None else mounts
        named = {f"host-{number}": place for number, place in enumerate(places)}
        on = [{"name": name, "mountPath": place} for name, place in named.items()]
        volumes = [{"name": name, "hostPath": {"path": str(places[place])}} for name, place in named.items()]
        main = container("main", PROGRAM, volumeMounts=[{"name": "data", "mountPath": "/data"}, *on])
        return {"containers": [main], "volumes": [{"name": "data", "emptyDir": {}}, *volumes]}

    def runs(self, running: RunningPod) -> list[str]:
        data = self._node.pod_dir(running.pod.uid) / "volumes" / "kubernetes.io~empty-dir" / "data" / "runs"
        return data.read_text().split() if data.exists() else []

    async def has_run(self, running: RunningPod, *names: str) -> None:
        await eventually.true(lambda: self.runs(running) == list(names))

    async def waits_at_driver(self) -> None:
        """Wait until the successor waits for a library."""

        def is_waited_for() -> bool:
            standby = self.standbys.last
            return standby is not None and isinstance(standby.driver, DriverHold) and standby.driver.is_waited_for

        await eventually.true(is_waited_for)

    async def swap(self, running: RunningPod) -> Outcome:
        intent, made = await self._swaps.prepared(running, order=intents.SwapOrder.START_ELSE_STOP_FIRST)
        tools = self._swaps.tools(standbys=self.standbys, gates=self.gates)
        successor_spec = replace(made, overlap_request=overlap.Request())
        return await SwapActuator(tools).carry_out(intent, successor_spec=successor_spec)

    async def pid(self, running: RunningPod) -> int:
        pid = (await self.cri.container_status(ContainerId(running.containers["main"]))).pid
        assert pid
        return pid

    async def marked(self, running: RunningPod) -> int:
        return mark_libraries(PROC / str(await self.pid(running)), self.runtime)

    async def held(self, running: RunningPod) -> DriverHold:
        """Hold openings from here on: the program's own at its start is over."""
        await self.has_run(running, "imports-0", "driver-0")
        holds = driver_hold.DriverHolds(at_most=60.0, threads=ThreadPoolExecutor(1))
        held = await holds.arm(PROC / str(await self.pid(running)), runtime=self.runtime)
        self._held.append(held)
        return held

    def openings(self) -> int:
        """Return how many openings of the library this process has a descriptor of: those that wait."""
        found, library = 0, self.library.stat()
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # of this listing itself
                found += os.path.samestat(each.stat(), library)
        return found

    async def sh(self, running: RunningPod, command: str) -> str:
        done = await self.cri.exec_sync(ContainerId(running.containers["main"]), ("sh", "-c", command), timeout=60.0)
        assert done.exit_code == 0, done
        return done.stdout.decode()
