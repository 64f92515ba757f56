"""Containers and processes that ``kubectl debug`` and ``kubectl exec`` add to a pod."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import images, node
from hack.fakenvml import control
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart.intents import Strategy
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import eventually
from tests.scenarios.columns.board import DATA, STRATEGIES, Board, Seen

pytestmark = pytest.mark.devnode

GPU: Final = {"limits": {"nvidia.com/gpu": "1"}}


async def debug(board: Board, name: str, debugger: str, *, target: str | None = None) -> ContainerId:
    """Put an ephemeral container into a pod, as ``kubectl debug`` does; return it once it runs."""
    made: dict[str, Any] = {
        "name": debugger,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "while :; do sleep 0.05; done"],
    }
    if target is not None:
        made["targetContainerName"] = target
    pod = await board.api.get(paths.pod("default", name))
    others = pod["spec"].get("ephemeralContainers", [])
    patch = {"spec": {"ephemeralContainers": [*others, made]}}
    path = f"{paths.pod('default', name)}/ephemeralcontainers"
    await board.api.patch(path, patch, content_type=kube.Patch.STRATEGIC)
    seen = await board.until(name, lambda each: "running" in state(each, debugger), what=f"with {debugger} running")
    (status,) = [each for each in seen.status["ephemeralContainerStatuses"] if each["name"] == debugger]
    return ContainerId(status["containerID"].rpartition("/")[2])


def state(seen: Seen, debugger: str) -> dict[str, Any]:
    """Return kubelet's state of an ephemeral container."""
    found = [each for each in seen.status.get("ephemeralContainerStatuses", ()) if each["name"] == debugger]
    return dict(found[0]["state"]) if found else {}


async def runs(cri: CriClient, container: ContainerId) -> bool:
    """Return whether a container runs for the runtime."""
    return (await cri.container_status(container)).state is ContainerState.RUNNING


async def test_debugger_next_to_the_container_lives_on(board: Board) -> None:
    async with board.pod("debugged") as seen:
        debugger = await debug(board, "debugged", "beside")
        for strategy in STRATEGIES:
            seen = await board.restarted("debugged", strategy, seen)  # noqa: PLW2901 - from one restart to the next
            assert await runs(board.cri, debugger), strategy
            assert "running" in state(await board.see("debugged"), "beside"), strategy


async def test_debugger_in_the_containers_pid_namespace_ends_with_it(board: Board) -> None:
    async with board.pod("targeted") as seen:
        debugger = await debug(board, "targeted", "inside", target="main")
        await board.restarted("targeted", Strategy.SWAP, seen)

        async def has_ended() -> bool:
            return not await runs(board.cri, debugger)

        await eventually.true(has_ended)
        after = await board.until("targeted", lambda each: "terminated" in state(each, "inside"), what="without it")
        assert len(await board.cri.list_containers(pod_uid=after.uid, name="inside")) == 1
        again = await debug(board, "targeted", "once-more", target="main")
        assert await runs(board.cri, again)


async def first_gpu(board: Board, seen: Seen) -> int:
    """Return the number of the GPU that the pod holds."""
    environment = await board.run(seen.running[0], "env")
    found = [uuid for uuid in board.dev.gpu_uuids if uuid in environment]
    return board.dev.gpu_uuids.index(found[0])


async def test_a_program_in_an_exec_shell_is_not_the_container(board: Board, dev: node.DevNode, tmp_path: Path) -> None:
    async with board.pod("shelled", resources=GPU) as seen:
        gpu = await first_gpu(board, seen)
        shell = f"echo $$ > {DATA}/shell; exec sleep 600"
        work = asyncio.create_task(board.cri.exec_sync(seen.running[0], ("sh", "-c", shell), timeout=700))
        try:
            (pid,) = await until_sleeping(seen.running[0])
            dev.kernel_log.write_xid(31, pci=control.kernel_address(gpu), pid=pid, name="sleep", text="MMU Fault")
            log = dev.layout.log_file("agent")
            await eventually.true(lambda: any(judged(log, pid)))
            later = await board.see("shelled")
            assert (later.running, later.restarts) == (seen.running, seen.restarts)
            (main,) = [(await board.cri.container_status(seen.running[0])).pid]
            dev.kernel_log.write_xid(31, pci=control.kernel_address(gpu), pid=main, name="sh", text="MMU Fault")
            await board.until("shelled", lambda each: each.restarts > seen.restarts, what="restarted")
        finally:
            work.cancel()


def judged(log: Path, pid: int) -> list[dict[str, Any]]:
    """Return the agent's log events about a process that is not a container's own."""
    lines = log.read_text().rpartition("\n")[0].splitlines()  # without one that is being written
    return [json.loads(line) for line in lines if f"{pid}" in line and line.startswith("{")]


async def until_sleeping(container: ContainerId) -> list[int]:
    """Wait for the program of the shell; return its pid on this node."""

    def look() -> list[int]:
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    group = (process / "cgroup").read_text()
                except OSError:
                    continue
                if words[:2] == [b"sleep", b"600"] and container in group:
                    found.append(int(process.name))
        return found

    await eventually.true(lambda: len(look()) == 1)
    return look()
