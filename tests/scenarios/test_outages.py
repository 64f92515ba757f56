"""Failures in the middle of a restart: the runtime, its answers, the disk. The restart is finished, or postponed."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.faults import disks
from hack.devnode import leftovers, node, readyz
from hack.devnode.criproxy import CriProxy, Fault, Gate, Slow, When
from hack.devnode.layout import NodeLayout
from hack.devnode.observer import Observer, Seen
from tests import machine
from tests.scenarios import dev_nodes, training

pytestmark = pytest.mark.devnode

CALLS = ("StopContainer", "CreateContainer", "StartContainer")
OUTAGE = 10.0
OPT_IN = {"kubemend.io/restart": "InPlace"}


@pytest.fixture
async def proxy(dev: node.DevNode, tmp_path: Path) -> AsyncIterator[CriProxy]:
    """The agent's socket of the runtime."""
    async with proxied(dev, tmp_path) as made:
        yield made


def proxied(dev: node.DevNode, directory: Path) -> CriProxy:
    return CriProxy(upstream=dev.layout.containerd_socket, socket=directory / "cri.sock")


def agent(dev: node.DevNode, proxy: CriProxy, directory: Path) -> Any:
    """An agent with a state of its own that uses only the proxy."""
    return dev.agent(f"--state-dir={directory / 'state'}", f"--cri-endpoint={proxy.socket}")


async def came_back(observer: Observer, name: str, before: Seen, *, strategy: str = "swap") -> Seen:
    """Wait for a verified restart: one container of each name, kubelet agrees, and the pod is unchanged."""
    lasting = {"trainer", "shipper"}

    def whole(seen: Seen) -> bool:
        return (
            seen.running.keys() == lasting
            and all(ids == (seen.container_ids[each],) for each, ids in seen.running.items())
            and seen.running["trainer"] != before.running["trainer"]
            and seen.condition("InPlaceRestart").get("message", "").endswith("; verified")
        )

    after = await observer.until(name, whole, timeout=training.DEADLINE, what=f"verified {strategy} of {name}")
    assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
    assert f" by {strategy} " in after.condition("InPlaceRestart")["message"]
    if strategy == "swap":
        assert after.running["shipper"] == before.running["shipper"]
    return await observer.until(
        name, lambda seen: seen.step > after.step, timeout=training.DEADLINE, what="further steps"
    )


LOST = [
    (method, code, when)
    for method, code in (
        ("StopContainer", grpc.StatusCode.INTERNAL),
        ("CreateContainer", grpc.StatusCode.UNAVAILABLE),
        ("StartContainer", grpc.StatusCode.UNKNOWN),
        ("ListContainers", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("ContainerStatus", grpc.StatusCode.UNAVAILABLE),
    )
    for when in When
]


async def test_failed_or_lost_call_does_not_stop_a_swap(
    dev: node.DevNode, observer: Observer, proxy: CriProxy, tmp_path: Path
) -> None:
    async with agent(dev, proxy, tmp_path) as started:
        await readyz.until_ready(started)
        for number, (method, code, when) in enumerate(LOST):
            name = f"lost-{number}"
            policy = ("Never", "Always")[number % 2]
            async with training.pod(dev, observer, name, gpus=1, restart_policy=policy) as before:
                fault = Fault(method, code, when)
                proxy.hooks[:] = [fault]
                await training.xid(dev, observer, name, 31)
                after = await came_back(observer, name, before)
                # Where kubelet was faster, the agent starts nothing.
                assert fault.times == 0 or not training.is_ours(after), f"{method} was not called"
        await readyz.until_ready(started)


@pytest.mark.parametrize(
    "strategy",
    [pytest.param("rerun", marks=dev_nodes.NOT_ON_CRIO), pytest.param("reset", marks=pytest.mark.long)],
)
async def test_failed_or_lost_call_does_not_stop_a_pod_restart(
    dev: node.DevNode, observer: Observer, proxy: CriProxy, tmp_path: Path, strategy: str
) -> None:
    annotations = OPT_IN | {"kubemend.io/strategy": strategy}
    async with agent(dev, proxy, tmp_path) as started:
        await readyz.until_ready(started)
        for when in When:
            name = f"lost-{strategy}-{when.value}"
            async with training.pod(dev, observer, name, gpus=1, annotations=annotations) as before:
                fault = Fault("RemoveContainer", grpc.StatusCode.UNAVAILABLE, when)
                proxy.hooks[:] = [fault]
                await training.xid(dev, observer, name, 31)
                after = await came_back(observer, name, before, strategy=strategy)
                assert fault.times == 0
                assert after.init_runs > before.init_runs


async def test_a_runtime_that_answers_slowly_makes_a_restart_slow(
    dev: node.DevNode, observer: Observer, proxy: CriProxy, tmp_path: Path
) -> None:
    proxy.hooks.append(Slow(frozenset({*CALLS, "ListContainers", "ContainerStatus", "ListPodSandbox"}), seconds=0.5))
    async with agent(dev, proxy, tmp_path) as started, training.pod(dev, observer, "slow") as before:
        await readyz.until_ready(started)
        await training.xid(dev, observer, "slow", 31)
        await came_back(observer, "slow", before)


@contextlib.asynccontextmanager
async def own_node(kind: str) -> AsyncIterator[node.DevNode]:
    """A node whose runtime the scenario may break; a restarted runtime is the scenario's own child."""
    machine.must_run_containers()
    async with node.DevNode(NodeLayout.named(f"{kind}-{os.getpid()}")) as made:
        try:
            yield made
        finally:  # pytest shows it with a failure; the log goes with the node
            for log in made.layout.root.glob("agent.log"):
                sys.stderr.write(log.read_bytes()[-6000:].decode(errors="replace"))
    assert leftovers.find(made.layout) == []
    made.layout.root.with_name(f".{made.layout.root.name}.lock").unlink(missing_ok=True)


def held_at(proxy: CriProxy, method: str) -> Gate:
    """Hold the next call of a method; return once it is held."""
    gate = Gate(lambda call: call.method == method)
    proxy.hooks[:] = [gate]
    return gate


@pytest.mark.parametrize("policy", ["Never", pytest.param("OnFailure", marks=pytest.mark.long)])
async def test_swap_continues_after_a_runtime_restart(tmp_path: Path, policy: str) -> None:
    async with (
        own_node("outage") as dev,
        Observer.of(dev.layout) as observer,
        proxied(dev, tmp_path) as proxy,
        agent(dev, proxy, tmp_path) as started,
    ):
        await readyz.until_ready(started)
        for method in CALLS:
            name = f"restarted-{method.lower()}"
            async with training.pod(dev, observer, name, restart_policy=policy) as before:
                gate = held_at(proxy, method)
                await training.xid(dev, observer, name, 31)
                await asyncio.wait_for(gate.reached.wait(), training.DEADLINE)
                await dev.containerd.restart()
                gate.open()
                await came_back(observer, name, before)
        await readyz.until_ready(started)


@pytest.mark.parametrize(
    ("how", "policy"), [("dead", "OnFailure"), pytest.param("hanging", "Never", marks=pytest.mark.long)]
)
async def test_swap_waits_for_a_runtime_that_is_away(tmp_path: Path, how: str, policy: str) -> None:
    async with (
        own_node("away") as dev,
        Observer.of(dev.layout) as observer,
        proxied(dev, tmp_path) as proxy,
        agent(dev, proxy, tmp_path) as started,
        training.pod(dev, observer, "away", restart_policy=policy) as before,
    ):
        await readyz.until_ready(started)
        gate = held_at(proxy, "StopContainer")
        await training.xid(dev, observer, "away", 31)
        await asyncio.wait_for(gate.reached.wait(), training.DEADLINE)
        if how == "dead":
            await dev.containerd.kill()
        else:
            dev.containerd.pause()
        gate.open()
        await asyncio.sleep(OUTAGE)
        if how == "dead":
            await dev.containerd.restart()
        else:
            dev.containerd.resume()
        await came_back(observer, "away", before)
        await readyz.until_ready(started)


async def test_a_full_disk_holds_restarts_until_there_is_room_again(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    with disks.small(tmp_path / "disk") as disk:
        async with dev.agent(f"--state-dir={disk}") as started, training.pod(dev, observer, "full-disk") as before:
            await readyz.until_ready(started)
            filler = disks.fill(disk)
            await training.xid(dev, observer, "full-disk", 31)
            held = await observer.until(
                "full-disk",
                lambda seen: seen.condition("InPlaceRestart").get("reason") == "JournalUnavailable",
                timeout=training.DEADLINE,
                what="the condition that it is on hold",
            )
            later = await training.trains_on(observer, "full-disk", held)
            assert later.running == before.running
            assert started.child.returncode is None
            filler.unlink()
            await came_back(observer, "full-disk", before)
            await readyz.until_ready(started)
