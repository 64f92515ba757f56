"""A swap keeps the paths of the writable layer that the pod names, on the real containerd, and nothing of the node."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.layer_copies import OF_IMAGE
from kubemend.agent.actuator.layer_keeping import LayerKeeper, LayerKeeping
from kubemend.agent.actuator.layer_moves import ABSENT, NO_KIND
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.containerd.snapshots import SnapshotClient
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, keep
from kubemend.common.side_process import SideProcess
from tests import eventually
from tests.devnode.pods import Pods, RunningPod, container
from tests.environments.overlaps import CGROUPS, PATIENT, PROC
from tests.environments.swaps import Swaps

pytestmark = pytest.mark.containerd

LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


class Env:
    """Swap the container ``main`` of pods; its successor keeps paths."""

    def __init__(self, swaps: Swaps, keeper: LayerKeeper, standbys: Standbys) -> None:
        self.cri = swaps.cri
        self._standbys = standbys
        self._swaps = swaps
        self._keeper = keeper

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


@pytest.fixture
async def env(containerd: Containerd) -> AsyncIterator[Env]:
    socket = str(containerd.node.containerd_socket)
    calls = SideProcess("layers", cgroup_root=Path("/sys/fs/cgroup"))
    async with Swaps.on(socket) as swaps:
        holds = ExecHolds(socket_path=socket, proc=PROC, roots=swaps.cri, timeouts=PATIENT)
        standbys = Standbys(owner=containerd.node.name, holds=holds, proc=PROC, cgroup_root=CGROUPS)
        keeper = LayerKeeper(socket, calls=calls, snapshots=SnapshotClient(socket), statuses=swaps.cri, seconds=60.0)
        await calls.call(os.getpid, owner="other", timeout=60.0)  # the process runs: on a busy machine it starts slowly
        yield Env(swaps, keeper, standbys)
    await calls.close()


@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
async def test_named_paths_survive_and_others_do_not(pods: Pods, env: Env, order: intents.SwapOrder) -> None:
    """Also what the container has removed from a directory of the image stays removed."""
    writes = (
        '[ -n "$KUBEMEND_RESTART_COUNT" ] || { umask 027; mkdir -p /model/deep/cache; '
        "chown 7:8 /model; chmod 1711 /model; cd /model/deep/cache; echo compiled > kernel; ln -s /proc/1/root out; "
        "mkfifo fifo; echo lost > /lost; rm -r /bin/ls; echo more > /bin/more-of-it; : > /ready; }; " + LOOP
    )
    running = await pods.run(name=f"kept-{order.value}", containers=[container("main", writes)])
    await env.ready(running)
    new, note = await env.swap(running, "/model/deep/cache", "/bin", "/never", order=order)
    assert note == "main keeps /model/deep/cache, /bin; main does not keep /never: the old container did not change it"
    assert await env.sh(new, "cat /model/deep/cache/kernel; stat -c '%u:%g %a' /model") == "compiled\n7:8 1711\n"
    assert await env.sh(new, "readlink /model/deep/cache/out; cat /bin/more-of-it") == "/proc/1/root\nmore\n"
    assert await env.sh(new, "test ! -e /lost && test ! -e /bin/ls && test -e /bin/sh && echo so") == "so\n"


async def test_successor_that_is_started_next_to_the_old_container_gets_copies(pods: Pods, env: Env) -> None:
    """Its program finds them at its first instruction, and what the image has stays the image's."""
    writes = (
        '[ -z "$KUBEMEND_RESTART_COUNT" ] || cp /model/deep/cache/kernel /found; '
        '[ -n "$KUBEMEND_RESTART_COUNT" ] || { umask 027; mkdir -p /model/deep/cache; '
        "chown 7:8 /model; chmod 1711 /model; cd /model/deep/cache; echo compiled > kernel; ln -s /proc/1/root out; "
        "mkfifo /pipe; echo lost > /lost; echo more > /bin/more-of-it; : > /ready; }; " + LOOP
    )
    running = await pods.run(name="copied", containers=[container("main", writes)])
    await env.ready(running)
    paths = ("/model/deep/cache", "/bin", "/pipe", "/never")
    new, note = await env.swap(running, *paths, order=intents.SwapOrder.START_FIRST)
    assert note == (
        f"main keeps /model/deep/cache; main does not keep /bin: {OF_IMAGE}; main does not keep /pipe: {NO_KIND}; "
        f"main does not keep /never: {ABSENT}"
    )
    shown = "cat /found /model/deep/cache/kernel; stat -c '%u:%g %a' /model; readlink /model/deep/cache/out"
    assert await env.sh(new, shown) == "compiled\ncompiled\n7:8 1711\n/proc/1/root\n"
    assert (
        await env.sh(new, "test ! -e /lost && test ! -e /bin/more-of-it && ls -A / | grep kubemend || echo so")
        == "so\n"
    )


async def test_no_link_and_no_mount_leads_anywhere(pods: Pods, env: Env, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("of the node")
    writes = (
        f'[ -n "$KUBEMEND_RESTART_COUNT" ] || {{ ln -s {precious} /whole; mkdir /on; ln -s {tmp_path} /on/way; '
        "ln -s ../../../../../../../../../../../../../../etc /up; mkfifo /fifo; : > /ready; }; " + LOOP
    )
    mounted = [{"name": "data", "mountPath": "/data/volume"}]
    running = await pods.run(
        name="hostile",
        containers=[container("main", writes, volumeMounts=mounted)],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    await env.ready(running)
    paths = ("/whole", "/on/way/precious", "/up", "/up/passwd", "/fifo", "/data", "/data/volume/x")
    new, note = await env.swap(running, *paths, order=intents.SwapOrder.STOP_FIRST)
    assert note.split("; ") == [
        "main does not keep /whole: it is neither a directory nor a file",
        "main does not keep /on/way/precious: a link or a file is on the way to it",
        "main does not keep /up: it is neither a directory nor a file",
        "main does not keep /up/passwd: a link or a file is on the way to it",
        "main does not keep /fifo: it is neither a directory nor a file",
        "main does not keep /data: something is mounted below it, at /data/volume",
        "main does not keep /data/volume/x: it belongs to what is mounted at /data/volume, "
        "not to the container's own files",
    ]
    assert await env.sh(new, "test ! -e /whole && test ! -e /up && test ! -e /on && echo nothing") == "nothing\n"
    assert (precious / "file").read_text() == "of the node"


async def test_running_container_is_never_changed(pods: Pods, env: Env) -> None:
    """Its directory is mounted: the move waits for that to end, and gives up."""
    running = await pods.run(name="mounted", containers=[container("main", LOOP), container("other", LOOP)])
    main, other = (ContainerId(running.containers[name]) for name in ("main", "other"))
    calls = SideProcess("layers", cgroup_root=Path("/sys/fs/cgroup"))
    await calls.call(os.getpid, owner="other", timeout=60.0)  # the process runs: on a busy machine it starts slowly
    snapshots = SnapshotClient(env.cri.endpoint)
    keeper = LayerKeeper(env.cri.endpoint, calls=calls, snapshots=snapshots, statuses=env.cri, seconds=1.0)

    async def gives_up() -> bool:
        kept = await keeper.move(main, other, ["/tmp"])
        assert isinstance(kept, keep.NotKept)
        return "still mounted" in kept.reason

    await eventually.true(gives_up)  # on a busy machine the answer may come too late
    await calls.close()
