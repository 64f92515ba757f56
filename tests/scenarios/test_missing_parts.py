"""A node on which something is missing: the agent starts, reports it with the fix, and recovers."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from hack.devnode import loopback, node, processes, readyz
from hack.devnode.node import Agent, agent_command
from hack.devnode.observer import Observer
from hack.fakenvml.layout import Driver
from tests.scenarios import training

pytestmark = pytest.mark.devnode


@contextlib.asynccontextmanager
async def started(dev: node.DevNode, tmp_path: Path, **flags: str) -> AsyncIterator[Agent]:
    """An agent with some of its flags changed, and a state of its own."""
    address = f"127.0.0.1:{loopback.free_port()}"
    given = {**dev.agent_flags(metrics_address=address), "state-dir": str(tmp_path / "state"), **flags}
    child = processes.Child.start(
        [*agent_command(), *(f"--{key}={value}" for key, value in given.items())],
        name="kubemend agent",
        log=tmp_path / "agent.log",
        pid_file=tmp_path / "agent.pid",
        environment=dev.agent_environment(),
    )
    try:
        yield Agent(child=child, metrics_address=address, log=tmp_path / "agent.log")
    finally:
        assert await child.stop(grace=training.DEADLINE) == 0


async def degraded(agent: Agent, part: str, *, mentions: str, also: Collection[str] = ()) -> None:
    """Wait until that component, and no other but ``also``, is degraded, with a message and a hint."""
    ready = await readyz.until(
        agent,
        lambda ready: (
            ready["parts"][part]["state"] == "degraded"
            and all(
                item["state"] in ("ready", "idle")
                for name, item in ready["parts"].items()
                if name != part and name not in also
            )
        ),
        what=f"{part} degraded",
    )
    assert ready["status"] == 503
    assert mentions in ready["parts"][part]["message"]
    assert ready["parts"][part]["hint"]


async def test_no_runtime_socket(dev: node.DevNode, tmp_path: Path) -> None:
    link = tmp_path / "cri.sock"
    async with started(dev, tmp_path, **{"cri-endpoint": str(link)}) as agent:
        await degraded(agent, "container-runtime", mentions=str(link))
        link.symlink_to(dev.layout.containerd_socket)
        await readyz.until_ready(agent)


async def test_a_socket_that_is_not_cri(dev: node.DevNode, tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        other.setblocking(False)
        async with started(dev, tmp_path, **{"cri-endpoint": str(path)}) as agent:
            await degraded(agent, "container-runtime", mentions=str(path))
            path.unlink()
            path.symlink_to(dev.layout.containerd_socket)
            await readyz.until_ready(agent)


async def test_no_kernel_log(dev: node.DevNode, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    async with started(dev, tmp_path, **{"kernel-log": str(path)}) as agent:
        await degraded(agent, "kernel-log", mentions=str(path))
        path.symlink_to(dev.layout.kernel_log)
        await readyz.until_ready(agent)


async def test_no_api_server(dev: node.DevNode, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with started(dev, tmp_path, kubeconfig=str(path)) as agent:
        await degraded(agent, "kubernetes-api", mentions=str(path), also=["node", "device-taints"])
        path.symlink_to(dev.kubeconfig)
        await readyz.until_ready(agent)


async def test_no_pod_resources_socket(dev: node.DevNode, tmp_path: Path) -> None:
    path = tmp_path / "pr.sock"
    async with started(dev, tmp_path, **{"pod-resources-socket": str(path)}) as agent:
        await degraded(agent, "pod-resources", mentions=str(path))
        path.symlink_to(dev.kubelet.pod_resources_socket)
        await readyz.until_ready(agent)


async def test_unloaded_driver_is_idle_and_used_once_loaded(dev: node.DevNode, tmp_path: Path) -> None:
    dev.nvml.driver(Driver.ABSENT)
    try:
        async with started(dev, tmp_path) as agent:
            await readyz.until(agent, lambda ready: ready["parts"]["nvml"]["state"] == "idle", what="nvml idle")
            dev.nvml.driver(Driver.LOADED)
            await readyz.until(agent, lambda ready: ready["parts"]["nvml"]["state"] == "ready", what="nvml ready")
    finally:
        dev.nvml.driver(Driver.LOADED)


async def test_fault_without_a_runtime_is_handled_once_it_appears(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    link = tmp_path / "cri.sock"
    async with (
        training.pod(dev, observer, "late-runtime") as before,
        started(dev, tmp_path, **{"cri-endpoint": str(link)}) as agent,
    ):
        await degraded(agent, "container-runtime", mentions=str(link))
        await training.xid(dev, observer, "late-runtime", 31)
        await observer.until(
            "late-runtime",
            lambda s: s.condition("DevicesHealthy").get("reason") == "Xid31",
            timeout=training.DEADLINE,
            what="reported",
        )
        link.symlink_to(dev.layout.containerd_socket)
        await training.restarted(observer, "late-runtime", before)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"metrics-address": "192.0.2.1:1"}, "--metrics-address"),
        ({"state-dir": "/proc/kubemend"}, "--state-dir"),
        ({"catalog": "/nowhere.yaml"}, "/nowhere.yaml"),
        ({"log-level": "loud"}, "--log-level"),
    ],
)
async def test_impossible_settings_are_refused_in_one_line(
    dev: node.DevNode, tmp_path: Path, flags: dict[str, str], named: str
) -> None:
    given = {
        **dev.agent_flags(metrics_address=f"127.0.0.1:{loopback.free_port()}"),
        "state-dir": str(tmp_path),
        **flags,
    }
    child = processes.Child.start(
        [*agent_command(), *(f"--{key}={value}" for key, value in given.items())],
        name="kubemend agent",
        log=tmp_path / "agent.log",
        pid_file=tmp_path / "agent.pid",
        environment=dict(os.environ),
    )
    assert await child.wait(timeout=training.DEADLINE) in (2, 3)
    last = (tmp_path / "agent.log").read_text().strip().splitlines()[-1]
    assert named in last
    assert "Traceback" not in (tmp_path / "agent.log").read_text()
