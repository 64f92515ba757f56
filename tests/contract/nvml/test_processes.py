"""Processes on a GPU, for the release gates before a restart. On a real GPU with a process that is killed."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hack.fakenvml import control
from hack.fakenvml.layout import Group
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.device_release import Process, ReleaseState
from kubemend.agent.sources.nvml.driver import Driver
from kubemend.agent.sources.processes import ProcFs
from tests.contract.nvml import users
from tests.contract.nvml.test_source import PATIENCE, Node, node
from tests.unit.restart import builders

__all__ = ["node"]

PROBE = """
import json, pynvml as nvml

def ask(function, *args):
    try:
        return [[process.pid, process.usedGpuMemory] for process in getattr(nvml, function)(*args)]
    except nvml.NVMLError as error:
        return f"error {error.value}"

nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "compute": ask("nvmlDeviceGetComputeRunningProcesses", handle),
    "graphics": ask("nvmlDeviceGetGraphicsRunningProcesses", handle),
    "mps": ask("nvmlDeviceGetMPSComputeRunningProcesses", handle),
    "used": nvml.nvmlDeviceGetMemoryInfo(handle).used,
}))
"""
NOT_SUPPORTED = "error 3"


def probe(env: Mapping[str, str]) -> dict[str, Any]:
    output = subprocess.check_output([sys.executable, "-c", PROBE], env=dict(env), timeout=60)
    found: dict[str, Any] = json.loads(output)
    return found


def test_each_list_is_a_list_or_not_supported(nvml_env: dict[str, str]) -> None:
    found = probe(nvml_env)
    assert isinstance(found["compute"], list)
    for kind in ("graphics", "mps"):
        assert isinstance(found[kind], list) or found[kind] == NOT_SUPPORTED


def test_a_process_and_its_memory_are_listed_and_gone_when_it_was_killed(nvml_env: dict[str, str]) -> None:
    with users.on_first_gpu(nvml_env) as user:
        during = probe(nvml_env)
        user.kill()
        after = probe(nvml_env)
    used = dict(during["compute"])[user.pid]
    assert used is None or used >= users.MEMORY  # None: the driver does not report it
    assert during["used"] >= users.MEMORY
    assert user.pid not in [pid for pid, _ in after["compute"]]
    assert during["used"] - after["used"] >= users.MEMORY


class OldContainer:
    """The host's real processes, of which one counts as the old container's."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._proc = ProcFs()

    def facts(self, pid: int) -> ProcessFacts | None:
        facts = self._proc.facts(pid)
        return replace(facts, container=ContainerId("old")) if facts is not None and pid == self._pid else facts

    def is_stuck(self, pid: int) -> bool:
        return self._proc.is_stuck(pid)

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:
        return self._proc.threads(pids)

    async def ended(self, pid: int, *, started: float = 0.0) -> None:
        await self._proc.ended(pid, started=started)

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, Process]:
        facts = self.facts(self._pid)
        return {self._pid: Process(facts.started, facts.container)} if facts is not None and containers else {}


async def test_a_gate_opens_when_the_process_behind_it_was_killed(nvml_env: dict[str, str], node: Node) -> None:
    uuid = node.source.inventory.gpus[0].uuid
    with users.on_first_gpu(nvml_env) as user:
        timeouts = Timeouts(before=PATIENCE, answer=PATIENCE, leave=PATIENCE)
        gates = ReleaseGates(driver=Driver(node.source), processes=OldContainer(user.pid), timeouts=timeouts)
        async with gates.around([builders.intent()], devices=frozenset({DeviceId(uuid)})) as visit:
            await visit.remembered()
            assert not await gates.opens("r1", timeout=0.1)
            await asyncio.to_thread(user.kill)
            async with asyncio.timeout(PATIENCE):
                assert await gates.opens("r1")
            assert (await visit.judgement()).verdict is ReleaseState.FREE
            assert visit.was_occupied


@pytest.mark.parametrize("nvml_env", ["fake"], indirect=True)
async def test_a_driver_too_slow_for_the_stop_still_reports_when_the_process_has_left(
    nvml_env: dict[str, str], node: Node
) -> None:
    """As after a trap on an H200. A list takes several calls."""
    uuid = DeviceId(node.source.inventory.gpus[0].uuid)
    with (
        control.FakeNvml(Path(nvml_env[control.STATE_VARIABLE]), Path()) as fake,
        users.on_first_gpu(nvml_env) as user,
    ):
        container = OldContainer(user.pid)
        timeouts = Timeouts(before=0.05, answer=PATIENCE, leave=PATIENCE)
        gates = ReleaseGates(driver=Driver(node.source), processes=container, old=container, timeouts=timeouts)
        fake.slow(Group.GETTERS, milliseconds=1000)
        async with gates.around([builders.intent()], devices=frozenset({uuid})) as visit:
            await visit.remembered()
            assert not visit.before.done(), "the stop did not wait for the driver"
            await asyncio.to_thread(user.kill)
            fake.slow(Group.GETTERS, milliseconds=0)
            async with asyncio.timeout(PATIENCE):
                assert await gates.opens("r1")
            assert (await visit.judgement()).verdict is ReleaseState.FREE
            assert visit.was_occupied
