"""The steps of scenarios: actions and waits."""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hack.devnode import node, trainer
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control
from tests import eventually

DEADLINE = 120.0


@contextlib.asynccontextmanager
async def pod(dev: node.DevNode, observer: Observer, name: str, **fields: Any) -> AsyncIterator[Seen]:
    """Run a training pod for the length of the block; yields it training."""
    async with made(observer, trainer.manifest(name, node=dev.name, **fields)) as seen:
        yield seen


@contextlib.asynccontextmanager
async def made(observer: Observer, manifest: Mapping[str, Any]) -> AsyncIterator[Seen]:
    """Run a pod of the scenario's own making for the length of the block; yields it training."""
    name = manifest["metadata"]["name"]
    await observer.create(manifest)
    try:
        yield await observer.until(name, is_training, timeout=DEADLINE, what=f"{name} training")
    finally:
        await observer.delete(name)


def is_training(seen: Seen) -> bool:
    """Return whether it is Running, and past its first step."""
    return seen.phase == "Running" and seen.step > 0 and len(seen.running.get("trainer", ())) == 1


async def xid(dev: node.DevNode, observer: Observer, name: str, code: int, *, pid: int | None = None) -> None:
    """Write an Xid on the first GPU that the pod holds into the kernel log; by default with its trainer's pid."""
    if pid is None:
        (container,) = (await observer.see(name)).running["trainer"]
        pid = await observer.pid(container)
    dev.kernel_log.write_xid(code, pci=control.kernel_address(await dev.first_gpu(name)), pid=pid, name="sh")


async def restarted(observer: Observer, name: str, before: Seen) -> Seen:
    """Wait for the next verified restart; everything but the trainer must be unchanged.

    Kubelet's relist may fall into it, on a slow machine often: then its own container is adopted.
    """
    wanted = before.restart_counts["trainer"] + 1
    after = await observer.until(
        name,
        lambda s: (
            s.restart_counts["trainer"] >= wanted
            and s.condition("InPlaceRestart").get("message", "").endswith("; verified")
            and s.condition("InPlaceRestart")["message"].startswith(f"trainer restart {wanted} ")
        ),
        timeout=DEADLINE,
        what=f"verified restart {wanted} of {name}",
    )
    assert after.restart_counts["trainer"] <= wanted + (not is_ours(after))
    assert len(after.running["trainer"]) == 1
    assert after.container_ids["trainer"] == after.running["trainer"][0]
    assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
    assert after.running.get("shipper") == before.running.get("shipper")
    assert after.init_runs == before.init_runs
    return after


async def healthy(observer: Observer, name: str) -> Seen:
    """Wait until a pod's devices are healthy: the condition of a fault may come after that of the restart."""
    return await observer.until(
        name,
        lambda seen: seen.condition("DevicesHealthy").get("status") == "True",
        timeout=DEADLINE,
        what=f"healthy devices of {name}",
    )


def is_ours(after: Seen) -> bool:
    """Return whether kubemend, and not kubelet, has created the successor."""
    return after.condition("InPlaceRestart")["reason"] == "Swapped"


async def log_of(observer: Observer, name: str, seen: Seen) -> str:
    """Return the log of the trainer's latest run, once that has written to it."""
    read = functools.partial(observer.log, name, seen.uid, container="trainer", restart=seen.restart_counts["trainer"])
    await eventually.true(lambda: read() != "")
    return read()


async def fixed(observer: Observer, name: str, before: Seen, *, because: str) -> Seen:
    """Wait for a verified restart for that cause, by kubemend, or by kubelet if that was faster."""
    return await observer.until(
        name,
        lambda s: (
            s.restart_counts["trainer"] > before.restart_counts["trainer"]
            and f" because {because}" in s.condition("InPlaceRestart").get("message", "")
            and s.condition("InPlaceRestart")["message"].endswith("; verified")
            and s.container_ids["trainer"] != before.container_ids["trainer"]
        ),
        timeout=DEADLINE,
        what=f"a verified restart of {name} because {because}",
    )


async def trains_on(observer: Observer, name: str, since: Seen, *, steps: int = 20) -> Seen:
    """Wait until the very same container has done that many further steps."""
    later = await observer.until(name, lambda s: s.step >= since.step + steps, timeout=DEADLINE, what="further steps")
    assert later.running["trainer"] == since.running["trainer"]
    assert later.restart_counts == since.restart_counts
    return later


async def metric(agent: node.Agent, name: str, **labels: str) -> float:
    """Return the value of one series on /metrics; 0 when it is missing."""
    value = await series(agent, name, **labels)
    return value if value is not None else 0.0


async def series(agent: node.Agent, name: str, **labels: str) -> float | None:
    """Return the value of one series on /metrics; None when it is missing."""
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(f"http://{agent.metrics_address}/metrics") as answer,
    ):
        text = await answer.text()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((sample.value for sample in samples if sample.name == name and sample.labels == labels), None)
