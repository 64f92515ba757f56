"""Swap containers whose successors keep paths of the writable layer, on a real runtime."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Self

from hack.devnode.layout import NodeLayout
from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.layer_keeping import LayerKeeper, LayerKeeping
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.containerd.snapshots import SnapshotClient
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, keep
from kubemend.common.side_process import SideProcess
from tests import eventually
from tests.devnode.pods import RunningPod
from tests.environments.overlaps import CGROUPS, PATIENT, PROC
from tests.environments.swaps import Swaps


class KeptLayersEnv:
    """Swap the container ``main`` of pods; its successor keeps paths."""

    def __init__(self, swaps: Swaps, keeper: LayerKeeper, standbys: Standbys) -> None:
        self.cri = swaps.cri
        self._standbys = standbys
        self._swaps = swaps
        self._keeper = keeper

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, node: NodeLayout) -> AsyncIterator[Self]:
        """Connect to the runtime of a node, for the block."""
        socket = str(node.containerd_socket)
        calls = SideProcess("layers", cgroup_root=CGROUPS)
        async with Swaps.on(socket) as swaps:
            holds = ExecHolds(socket_path=socket, proc=PROC, roots=swaps.cri, timeouts=PATIENT)
            standbys = Standbys(owner=node.name, holds=holds, proc=PROC, cgroup_root=CGROUPS)
            keeper = LayerKeeper(
                socket, calls=calls, snapshots=SnapshotClient(socket), statuses=swaps.cri, seconds=60.0
            )
            # The process runs before it is needed: on a busy machine it starts slowly.
            await calls.call(os.getpid, owner="other", timeout=60.0)
            yield cls(swaps, keeper, standbys)
        await calls.close()

    async def swap(self, running: RunningPod, *paths: str, order: intents.SwapOrder) -> tuple[ContainerId, str]:
        """Return the successor, and the note for people."""
        intent, made = await self._swaps.prepared(running, order=order)
        keeping = LayerKeeping(self._keeper, keep.Request("main", paths, intent.old, made.mount_points))
        tools = self._swaps.tools(standbys=self._standbys if order.starts_first else None)
        actuator, preparation = SwapActuator(tools), StartPreparation(kept={"main": keeping})
        outcome = await actuator.carry_out(intent, successor_spec=made, preparation=preparation)
        assert outcome.result is Result.SWAPPED, outcome
        return outcome.current["main"], keeping.note

    async def sh(self, container_id: str, command: str) -> str:
        """Run a command in a container that must succeed; return its output."""
        done = await self.cri.exec_sync(ContainerId(container_id), ("sh", "-c", command), timeout=60.0)
        assert done.exit_code == 0, done
        return done.stdout.decode()

    async def ready(self, running: RunningPod) -> None:
        """Wait until the program has written its files."""

        async def is_ready() -> bool:
            done = await self.cri.exec_sync(
                ContainerId(running.containers["main"]), ("sh", "-c", "test -e /ready"), timeout=60.0
            )
            return done.exit_code == 0

        await eventually.true(is_ready)
