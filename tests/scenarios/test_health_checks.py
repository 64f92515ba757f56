"""Processes in real containers ask the agent for the health of their pods' devices."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer, Seen
from kubemend.common import cgroupfs
from tests.scenarios import training

pytestmark = pytest.mark.devnode

Json = dict[str, Any]

CLIENT = """
import json, sys, grpc
from pathlib import Path
from kubemend.common.pb.nvhcd import nvhcd_pb2, nvhcd_pb2_grpc
for directory in sys.argv[2:]:
    Path(directory, "cgroup.procs").write_text("0")  # as a process of the container
with grpc.insecure_channel(f"unix://{sys.argv[1]}") as channel:
    stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)
    request = nvhcd_pb2.HealthCheckRequest(args=["--no-slurm"])
    try:
        answer = stub.RunHealthCheck(request, timeout=60)
        print(json.dumps({"success": answer.success, **json.loads(answer.output)}))
    except grpc.RpcError as error:
        print(json.dumps({"code": error.code().name, "details": error.details()}))
"""


def cgroups(pid: int) -> frozenset[Path]:
    """Return the directories of a process's cgroups."""
    paths = [line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return frozenset(group for path in paths for group in cgroupfs.directories(path, mounted_at=Path("/sys/fs/cgroup")))


async def asked(observer: Observer, socket: Path, seen: Seen | None) -> Json:
    """Ask from a process in the pod's trainer; without a pod from one outside all containers."""
    groups = cgroups(await observer.pid(seen.running["trainer"][0])) if seen is not None else ()
    command = [sys.executable, "-c", CLIENT, str(socket), *map(str, groups)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


async def test_each_pod_learns_of_its_own_gpu(dev: node.DevNode, observer: Observer, tmp_path: Path) -> None:
    socket = tmp_path / "nvhcd.sock"
    async with (
        dev.agent(f"--state-dir={tmp_path / 'state'}", f"--health-check-socket={socket}") as agent,
        training.pod(dev, observer, "asks", gpus=1) as asks,
        training.pod(dev, observer, "asks-too", gpus=1) as asks_too,
    ):
        await readyz.until_ready(agent)
        mine, theirs = [dev.gpu_uuids[await dev.first_gpu(name)] for name in ("asks", "asks-too")]
        for seen, gpu in ((asks, mine), (asks_too, theirs)):
            answer = await asked(observer, socket, seen)
            assert (answer["success"], answer["fail_count"]) == (True, 0), answer
            assert [device["device"] for device in answer["devices"]] == [gpu]
        assert (await asked(observer, socket, None))["code"] == "UNAVAILABLE"

        await training.xid(dev, observer, "asks", 79)
        await observer.until(
            "asks",
            lambda s: s.condition("DevicesHealthy").get("reason") == "Xid79",
            timeout=training.DEADLINE,
            what="the fault",
        )
        failed, passed = await asked(observer, socket, asks), await asked(observer, socket, asks_too)
        assert (failed["success"], failed["failed_checks"]) == (False, [f"{mine} Xid79"])
        assert (passed["success"], mine in str(passed)) == (True, False)
        assert await training.metric(agent, "kubemend_health_checks_total", result="Passed") == 3
        assert await training.metric(agent, "kubemend_health_checks_total", result="Failed") == 1
        assert await training.metric(agent, "kubemend_health_checks_total", result="NoContainer") >= 1
