"""The agent's reports on devices, seen from outside: on pods, on the node, in Events, and after its own death."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from hack.fakenvml import control
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.scenarios import training

pytestmark = pytest.mark.devnode

CONDITION = "kubemend.io/DevicesHealthy"
Json = dict[str, Any]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def api(observer: Observer) -> kube.KubeClient:
    return observer.api


@contextlib.asynccontextmanager
async def agent_of(dev: node.DevNode, state: Path) -> AsyncIterator[node.Agent]:
    async with dev.agent(f"--state-dir={state}") as agent:
        await readyz.until_ready(agent)
        yield agent


async def node_condition(api: kube.KubeClient, dev: node.DevNode, holds: Callable[[Json], bool], *, what: str) -> Json:
    """Wait until the node's condition is as expected."""
    path = f"{paths.NODES}/{dev.name}"
    async with asyncio.timeout(training.DEADLINE):
        while True:
            conditions = (await api.get(path)).get("status", {}).get("conditions", [])
            found: Json = next((each for each in conditions if each["type"] == CONDITION), {})
            if found and holds(found):
                return found
            await asyncio.sleep(0.05)
    raise AssertionError(what)


async def event(api: kube.KubeClient, reason: str, *, about: str) -> Json:
    """Wait for an Event of that reason on an object of that name."""
    async with asyncio.timeout(training.DEADLINE):
        while True:
            events = (await api.list("/api/v1/events")).items
            found: list[Json] = [
                each for each in events if (each["reason"], each["involvedObject"]["name"]) == (reason, about)
            ]
            if found:
                return found[0]
            await asyncio.sleep(0.05)


async def command(name: str, *arguments: str, state: Path) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "kubemend.agent.cli", name, f"--state-dir={state}", *arguments]
    return await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=60, check=False)


async def test_lost_gpu_is_reported_until_it_is_back(
    dev: node.DevNode, observer: Observer, api: kube.KubeClient, state: Path
) -> None:
    async with agent_of(dev, state), training.pod(dev, observer, "loses-one"):
        gpu = await dev.first_gpu("loses-one")
        await node_condition(api, dev, lambda c: c["status"] == "True", what="a healthy node")
        dev.nvml.lost(gpu=gpu)
        try:
            await observer.until(
                "loses-one",
                lambda s: s.condition("DeviceFailure").get("reason") == "DeviceLost",
                timeout=training.DEADLINE,
                what="DeviceFailure",
            )
            reported = await node_condition(api, dev, lambda c: c["status"] == "False", what="a faulty node")
            assert reported["reason"] == "DeviceLost"
            assert dev.gpu_uuids[gpu] in reported["message"]
            on_pod = await event(api, "DeviceUnhealthy", about="loses-one")
            assert (on_pod["type"], dev.gpu_uuids[gpu] in on_pod["message"]) == ("Warning", True)
            await event(api, "DeviceUnhealthy", about=dev.name)
        finally:
            dev.nvml.healthy(gpu=gpu)
        # Only another nvmlInit shows a lost GPU again; the tool that resets a GPU asks for it.
        done = await command("release-devices", "true", state=state)
        assert done.returncode == 0, done
        await training.healthy(observer, "loses-one")
        await node_condition(api, dev, lambda c: c["status"] == "True", what="a healthy node again")
        await event(api, "DeviceHealthy", about="loses-one")


async def test_degradation_is_reported_and_ends_only_by_evidence(
    dev: node.DevNode, observer: Observer, state: Path
) -> None:
    async with agent_of(dev, state), training.pod(dev, observer, "remaps") as before:
        gpu = await dev.first_gpu("remaps")
        dev.nvml.remapped_rows(gpu=gpu, pending=True)
        dev.nvml.event(control.EVENT_RECOVERY_ACTION, gpu=gpu)  # any event brings the poll forward
        try:
            reported = await observer.until(
                "remaps",
                lambda s: s.condition("DevicesHealthy").get("reason") == "RowRemapPending",
                timeout=training.DEADLINE,
                what="the degradation",
            )
            assert reported.condition("DeviceFailure")["status"] == "False"
            await training.xid(dev, observer, "remaps", 31)
            await training.restarted(observer, "remaps", before)
            done = await command("clear", dev.gpu_uuids[gpu], state=state)
            assert done.returncode == 1
            assert "still observed, not cleared: RowRemapPending" in done.stdout
        finally:
            dev.nvml.after_reset(gpu=gpu)
            dev.nvml.remapped_rows(gpu=gpu, pending=False)
        dev.nvml.event(control.EVENT_RECOVERY_ACTION, gpu=gpu)
        await training.healthy(observer, "remaps")


async def test_verdict_survives_a_killed_agent_until_an_operator_clears_it(
    dev: node.DevNode, observer: Observer, api: kube.KubeClient, state: Path
) -> None:
    async with training.pod(dev, observer, "outlives"):
        async with agent_of(dev, state) as agent:
            await training.xid(dev, observer, "outlives", 64)
            await observer.until(
                "outlives",
                lambda s: s.condition("DeviceFailure").get("reason") == "Xid64",
                timeout=training.DEADLINE,
                what="DeviceFailure",
            )
            agent.child.signal(signal.SIGKILL)
            await agent.child.wait(timeout=training.DEADLINE)
        dev.kernel_log.clear()  # so that it cannot be read again
        async with agent_of(dev, state):
            listed = await command("scan", "--agent", "--json", state=state)
            assert "Xid64" in listed.stdout
            assert listed.returncode == 2
            gpu = await dev.first_gpu("outlives")
            done = await command("clear", dev.gpu_uuids[gpu], state=state)
            assert (done.returncode, done.stdout) == (0, f"{dev.gpu_uuids[gpu]}: cleared Xid 64\n")
            await training.healthy(observer, "outlives")
            await node_condition(api, dev, lambda c: c["status"] == "True", what="a healthy node")


async def test_gpu_lost_without_an_agent_is_detected_by_the_next(
    dev: node.DevNode, observer: Observer, state: Path
) -> None:
    async with training.pod(dev, observer, "missed"):
        gpu = await dev.first_gpu("missed")
        async with agent_of(dev, state):
            await training.healthy(observer, "missed")
        dev.nvml.remove(gpu=gpu)
        try:
            async with agent_of(dev, state):
                await observer.until(
                    "missed",
                    lambda s: s.condition("DeviceFailure").get("reason") == "DeviceLost",
                    timeout=training.DEADLINE,
                    what="DeviceLost",
                )
        finally:
            dev.nvml.add(gpu=gpu)


async def test_hanging_driver_hides_no_line_of_the_kernel_log(
    dev: node.DevNode, observer: Observer, state: Path
) -> None:
    async with agent_of(dev, state), training.pod(dev, observer, "hung"):
        dev.nvml.hang()
        try:
            await training.xid(dev, observer, "hung", 79)
            await observer.until(
                "hung",
                lambda s: s.condition("DeviceFailure").get("reason") == "Xid79",
                timeout=training.DEADLINE,
                what="the Xid",
            )
        finally:
            dev.nvml.resume()


async def test_oom_kill_is_reported_on_its_pod(
    dev: node.DevNode, observer: Observer, api: kube.KubeClient, state: Path
) -> None:
    # The agent lists the pod at its start: it is not late with the container's name then.
    async with training.pod(dev, observer, "hungry") as seen, agent_of(dev, state):
        cgroup = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{seen.uid.replace('-', '_')}.slice"
        scope = f"cri-containerd-{seen.running['trainer'][0]}.scope"
        dev.kernel_log.write(
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={scope},mems_allowed=0,"
            f"oom_memcg={cgroup}/{scope},task_memcg={cgroup}/{scope},task=python3,pid=4242,uid=0"
        )
        reported = await event(api, "OOMKilled", about="hungry")
        assert "python3 (pid 4242)" in reported["message"]
        assert reported["involvedObject"].get("fieldPath") == "spec.containers{trainer}"
