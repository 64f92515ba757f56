"""Every strategy keeps a pod's external state: resized limits, caches, image volumes, termination messages."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import images
from kubemend.agent.model import conditions
from kubemend.agent.restart import overlap
from kubemend.agent.restart.intents import Strategy
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import eventually
from tests.scenarios import components, dev_nodes
from tests.scenarios.columns.board import DATA, LOOP, STRATEGIES, Board, Seen

pytestmark = pytest.mark.devnode

MIB: Final = 1 << 20
WORDS: Final = "illegal memory access at step 4711"
LIMIT_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
TERMINATION_LOG: Final = "/dev/termination-log"
WRITTEN: Final = f"until [ -s {TERMINATION_LOG} ]; do sleep 0.05; done; cat {TERMINATION_LOG}"


async def resize(board: Board, name: str, *, memory: str, cpu: str) -> None:
    """Resize the main container in place, as ``kubectl patch --subresource=resize`` does."""
    resources = {"limits": {"memory": memory, "cpu": cpu}, "requests": {"memory": memory, "cpu": cpu}}
    patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    await board.api.patch(f"{paths.pod('default', name)}/resize", patch, content_type=kube.Patch.STRATEGIC)


async def resized(board: Board, name: str, *, memory: str) -> Seen:
    """Wait until kubelet reports that it has resized the main container."""

    def is_resized(seen: Seen) -> bool:
        under_way = any(each["type"].startswith("PodResize") for each in seen.status["conditions"])
        limits = seen.main.get("resources", {}).get("limits", {})
        return seen.is_ready and limits.get("memory") == memory and not under_way

    return await board.until(name, is_resized, what=f"resized to {memory}")


async def test_limits_that_were_resized_in_place_survive_every_restart(board: Board) -> None:
    limits = {"memory": "64Mi", "cpu": "250m"}
    async with board.pod("resized", resources={"limits": limits, "requests": limits}):
        for number, strategy in enumerate(STRATEGIES, 2):
            memory = f"{64 * number}Mi"
            await resize(board, "resized", memory=memory, cpu=f"{250 * number}m")
            seen = await resized(board, "resized", memory=memory)
            wanted = (await board.shown_by_runtime(seen.running[0])).resources.linux
            assert wanted.memory_limit_in_bytes == 64 * number * MIB
            after = await board.restarted("resized", strategy, seen)
            found = (await board.shown_by_runtime(after.running[0])).resources.linux
            assert (found.memory_limit_in_bytes, found.cpu_quota, found.cpu_shares) == (
                wanted.memory_limit_in_bytes, wanted.cpu_quota, wanted.cpu_shares,
            ), strategy  # fmt: skip
            kernel = [
                await board.run(after.running[0], "sh", "-c", f"cat {file} 2>/dev/null || true") for file in LIMIT_FILES
            ]
            assert "".join(kernel).split() == [str(64 * number * MIB)], strategy
            await resized(board, "resized", memory=memory)


@dev_nodes.NOT_ON_CRIO
async def test_limits_that_are_resized_while_the_old_container_ends_survive(board: Board) -> None:
    limits = {"memory": "64Mi", "cpu": "250m"}
    ends = f"trap 'touch {DATA}/ending; until [ -e {DATA}/end ]; do sleep 0.05; done; exit 1' TERM; rm -f {DATA}/end*"
    async with board.pod("resized-late", f"{ends}; {LOOP}", resources={"limits": limits, "requests": limits}) as first:
        seen = first
        for number, strategy in enumerate((Strategy.SWAP, Strategy.RERUN), 2):
            memory = f"{64 * number}Mi"
            async with asyncio.TaskGroup() as tasks:
                restart = tasks.create_task(board.restarted("resized-late", strategy, seen, grace=60.0))
                await eventually.true((board.volume(seen) / "ending").exists)
                await resize(board, "resized-late", memory=memory, cpu="250m")
                await resized(board, "resized-late", memory=memory)
                (board.volume(seen) / "end").touch()
            seen = restart.result()
            await resized(board, "resized-late", memory=memory)
            found = (await board.shown_by_runtime(seen.running[0])).resources.linux
            assert found.memory_limit_in_bytes == 64 * number * MIB, strategy


async def test_caches_survive_every_restart_and_the_writable_layer_does_not(board: Board) -> None:
    compiled = 'for each in "$TRITON_CACHE_DIR" /root/.triton; do mkdir -p $each && echo x >> $each/kernel; done'
    counted = 'wc -l < "$TRITON_CACHE_DIR/kernel"; wc -l < /root/.triton/kernel'
    caches = components.in_force(
        board.api, "caches", asked=board.manifest("asked", LOOP, None, {}), volume="kubemend-cache"
    )
    async with caches, board.pod("compiled", f"{compiled}; touch /root/done; {LOOP}") as first:
        seen, copies = first, 0
        for number, strategy in enumerate(STRATEGIES, 2):
            await board.run(seen.running[0], "sh", "-c", "until [ -e /root/done ]; do sleep 0.05; done")
            seen = await board.restarted("compiled", strategy, seen)
            copies += board.was_copied(seen)  # then kubemend's container may have run, too
            await board.run(seen.running[0], "sh", "-c", "until [ -e /root/done ]; do sleep 0.05; done")
            cached, in_layer = (await board.run(seen.running[0], "sh", "-c", counted)).split()
            assert number <= int(cached) <= number + copies, strategy
            assert in_layer == "1", strategy


async def test_named_paths_of_the_writable_layer_survive_a_swap_and_a_rerun(board: Board) -> None:
    compiled = "mkdir -p /root/.triton && echo x >> /root/.triton/kernel; echo x >> /root/lost; touch /tmp/done"
    annotations = {"kubemend.io/keep": "/root/.triton"}
    async with board.pod("kept", f"{compiled}; {LOOP}", annotations=annotations) as first:
        seen = first
        await board.run(seen.running[0], "sh", "-c", "until [ -e /tmp/done ]; do sleep 0.05; done")
        runs = 1
        for strategy in STRATEGIES[:-1]:
            seen = await board.restarted("kept", strategy, seen)
            runs = 1 if board.was_copied(seen) else runs + 1  # kubelet's container does not have them
            await board.run(seen.running[0], "sh", "-c", "until [ -e /tmp/done ]; do sleep 0.05; done")
            counted = await board.run(seen.running[0], "sh", "-c", "wc -l < /root/.triton/kernel; wc -l < /root/lost")
            assert counted.split() == [str(runs), "1"], strategy


async def test_image_volume_is_mounted_after_every_restart(board: Board) -> None:
    image = {"name": "tools", "image": {"reference": images.BUSYBOX, "pullPolicy": "Never"}}
    mount = {"name": "tools", "mountPath": "/tools", "readOnly": True}
    async with board.pod("image-volume", spec={"volumes": [image]}, volumeMounts=[mount]) as first:
        seen = first
        for strategy in STRATEGIES[-1:] if dev_nodes.ON_CRIO else STRATEGIES:  # CRI-O hides the name of the image
            seen = await board.restarted("image-volume", strategy, seen)
            assert await board.run(seen.running[0], "/tools/bin/sh", "-c", "echo it runs") == "it runs\n", strategy


async def test_kubelet_reads_the_termination_message_of_a_restarted_container(board: Board) -> None:
    script = f"echo '{WORDS}' \"$(wc -l < {DATA}/up 2>/dev/null || echo 0)\" > {TERMINATION_LOG}; {LOOP}"
    async with board.pod("last-words", script) as first:
        seen = first
        for _ in range(2):
            words = await board.run(seen.running[0], "sh", "-c", WRITTEN)
            assert words.startswith(WORDS)
            seen = await board.restarted("last-words", Strategy.SWAP, seen)
            await board.until("last-words", lambda each: each.last_words == words, what="its termination message")  # noqa: B023


@pytest.mark.parametrize("read_only", [True, False])
async def test_mount_at_the_termination_path_is_never_written(board: Board, tmp_path: Path, *, read_only: bool) -> None:
    precious = tmp_path / "train.tar"
    precious.write_text("precious " * 1000)
    before = precious.stat()
    volume = {"name": "precious", "hostPath": {"path": str(precious), "type": "File"}}
    mount: dict[str, Any] = {"name": "precious", "mountPath": TERMINATION_LOG, "readOnly": read_only}
    async with board.pod("precious", spec={"volumes": [volume]}, volumeMounts=[mount]) as first:
        seen = first
        for strategy in STRATEGIES:
            seen = await board.restarted("precious", strategy, seen)
            assert precious.read_text() == "precious " * 1000, strategy
    after = precious.stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (before.st_mtime_ns, before.st_mode, before.st_ino)


@pytest.mark.long
async def test_successor_imports_while_the_old_program_dies_and_kubelet_keeps_it(board: Board, tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.550.1"
    library.write_text("stands in for the driver's")
    place = f"/usr/lib/{library.name}"
    volume = {"name": "driver", "hostPath": {"path": str(library), "type": "File"}}
    mount: dict[str, Any] = {"name": "driver", "mountPath": place, "readOnly": True}
    script, annotations = f"cat {place} > /tmp/loaded; {LOOP}", {"kubemend.io/overlap": "imports"}
    spec = {"volumes": [volume]}
    async with board.pod("overlap", script, annotations=annotations, spec=spec, volumeMounts=[mount]) as first:
        after = await board.restarted("overlap", Strategy.SWAP, first)
        note = overlap.note("main", None)
        await board.until("overlap", lambda seen: note in restart_message(seen), what="a condition that reports it")
        await board.run(after.running[0], "sh", "-c", "until [ -s /tmp/loaded ]; do sleep 0.05; done")


def restart_message(seen: Seen) -> str:
    """Return the message of the pod's condition InPlaceRestart; empty if it has none."""
    found = (each for each in seen.status["conditions"] if each["type"] == conditions.IN_PLACE_RESTART)
    return next((str(each["message"]) for each in found), "")
