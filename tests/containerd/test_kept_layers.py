"""A swap keeps the paths of the writable layer that the pod names, on the real containerd, and nothing of the node."""

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.layer_copies import OF_IMAGE
from kubemend.agent.actuator.layer_keeping import LayerKeeper
from kubemend.agent.actuator.layer_moves import ABSENT, KEPT, NO_KIND
from kubemend.agent.clients.containerd.snapshots import SnapshotClient
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, keep
from kubemend.common.side_process import SideProcess
from tests import eventually
from tests.devnode.pods import Pods, container
from tests.environments.kept_layers import KeptLayersEnv

pytestmark = pytest.mark.containerd

LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def env(containerd: Containerd) -> AsyncIterator[KeptLayersEnv]:
    async with KeptLayersEnv.on(containerd.node) as made:
        yield made


@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
async def test_named_paths_survive_and_others_do_not(pods: Pods, env: KeptLayersEnv, order: intents.SwapOrder) -> None:
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


async def test_successor_that_is_started_next_to_the_old_container_gets_copies(pods: Pods, env: KeptLayersEnv) -> None:
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


async def test_no_link_and_no_mount_leads_anywhere(pods: Pods, env: KeptLayersEnv, tmp_path: Path) -> None:
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
        "main does not keep /data/volume/x: it belongs to the mount at /data/volume, not to the container's own files",
    ]
    assert await env.sh(new, "test ! -e /whole && test ! -e /up && test ! -e /on && echo nothing") == "nothing\n"
    assert (precious / "file").read_text() == "of the node"


async def test_running_container_is_never_changed(pods: Pods, env: KeptLayersEnv) -> None:
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


@dataclass
class Store:
    """Containers as CRI-O has them in its store: each root is mounted from the container's creation on."""

    directory: Path
    lower: Path

    def root(self, name: str) -> Path:
        return self.directory / name / "merged"

    def create(self, name: str) -> None:
        layer = self.directory / name
        for part in ("diff", "work", "merged"):
            (layer / part).mkdir(parents=True)
        (layer / "lower").write_text("l/IMAGE")
        options = f"lowerdir={self.lower},upperdir={layer / 'diff'},workdir={layer / 'work'}"
        subprocess.run(("mount", "-t", "overlay", "-o", options, "overlay", self.root(name)), check=True)

    def unmount(self, name: str) -> None:
        subprocess.run(("umount", self.root(name)), check=True)

    def cover(self, name: str) -> None:
        subprocess.run(("mount", "-t", "tmpfs", "tmpfs", self.root(name)), check=True)

    async def container_status(self, container_id: ContainerId) -> SimpleNamespace:
        return SimpleNamespace(snapshot=None, root=str(self.root(container_id)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path, tmp_path / "image")
    (made.lower / "bin").mkdir(parents=True)
    (made.lower / "bin" / "sh").write_text("of the image")
    for name in ("old", "new"):
        made.create(name)
    yield made
    for root in tmp_path.glob("*/merged"):
        while root.is_mount():
            subprocess.run(("umount", root), check=True)


@pytest.fixture
async def keeper(store: Store) -> AsyncIterator[LayerKeeper]:
    """Keep paths in the store of a runtime, which is this process."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(store.directory / "crio.sock"))
    listening.listen()
    calls = SideProcess("layers", cgroup_root=Path("/sys/fs/cgroup"))
    with listening:
        statuses: Any = store
        yield LayerKeeper(
            listening.getsockname(), calls=calls, snapshots=SnapshotClient(""), statuses=statuses, seconds=60.0
        )
    await calls.close()


async def test_paths_are_copied_to_a_root_that_the_runtime_has_mounted(store: Store, keeper: LayerKeeper) -> None:
    (store.root("old") / "cache").mkdir(mode=0o711)
    (store.root("old") / "cache" / "kernel").write_text("compiled")
    (store.root("old") / "bin" / "more").write_text("more")
    kept = await keeper.move(ContainerId("old"), ContainerId("new"), ["/cache", "/bin", "/never"])
    assert kept == {"/cache": KEPT, "/bin": OF_IMAGE, "/never": ABSENT}
    assert (store.root("new") / "cache" / "kernel").read_text() == "compiled"
    assert sorted(each.name for each in store.root("new").iterdir()) == ["bin", "cache"]


@pytest.mark.parametrize("case", ["unmounted", "covered"])
async def test_nothing_is_written_where_the_successors_root_should_be(
    store: Store, keeper: LayerKeeper, case: str
) -> None:
    root = store.root("new")
    (store.unmount if case == "unmounted" else store.cover)("new")
    (store.root("old") / "cache").mkdir()
    kept = await keeper.move(ContainerId("old"), ContainerId("new"), ["/cache"])
    assert kept == keep.NotKept("the new container's root was not found")
    assert list(root.iterdir()) == []


async def test_other_image_and_other_stores_keep_nothing(store: Store, keeper: LayerKeeper) -> None:
    (store.directory / "new" / "lower").write_text("l/OTHER")
    other = await keeper.move(ContainerId("old"), ContainerId("new"), ["/cache"])
    assert other == keep.NotKept("the new container has another image")
    (store.directory / "new" / "lower").unlink()
    assert await keeper.move(ContainerId("old"), ContainerId("new"), ["/cache"]) == keep.NotKept(keep.NO_OVERLAY)
