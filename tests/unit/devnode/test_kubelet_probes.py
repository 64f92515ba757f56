"""Probes of the kubelet stand-in: they begin with the report of their container, and not some time after it."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from hack.devnode.kubelet.probes import Prober
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.spec import Json
from tests.unit.devnode.kubelet_builders import container, pod

PATIENCE = 60.0
PROBE: Json = {"exec": {"command": ["true"]}, "periodSeconds": 3600}


class Runtime:
    """Runs every command well, and says in which container."""

    def __init__(self) -> None:
        self.ran_in: asyncio.Queue[str] = asyncio.Queue()

    async def run_in(self, container_id: str, command: Sequence[str], *, timeout: float) -> int:
        self.ran_in.put_nowait(container_id)
        return 0


def status(**fields: Any) -> Json:
    return {"phase": "Running", "containerStatuses": [{"name": "main", **fields}]}


async def test_a_probe_begins_when_its_container_is_reported() -> None:
    runtime, changes = Runtime(), asyncio.Queue[str]()
    reported = {"status": status(state={"waiting": {}})}
    prober = Prober(
        runtime=cast("CriRuntime", runtime), reported=lambda _: reported["status"], on_change=changes.put_nowait
    )
    subject = pod(container("main", readinessProbe=PROBE))

    prober.watch(subject)
    reported["status"] = status(state={"running": {}}, containerID="containerd://c-1")
    prober.watch(subject)

    async with asyncio.timeout(PATIENCE):
        assert await runtime.ran_in.get() == "c-1"
        while not prober.result("readiness", "c-1"):
            await changes.get()
    await prober.close()


async def test_reports_without_the_container_are_waited_out() -> None:
    runtime = Runtime()
    reported = {"status": status(state={"waiting": {}})}
    prober = Prober(
        runtime=cast("CriRuntime", runtime), reported=lambda _: reported["status"], on_change=lambda _: None
    )
    subject = pod(container("main", livenessProbe=PROBE))

    for _ in range(3):
        prober.watch(subject)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert runtime.ran_in.empty()
    reported["status"] = status(state={"running": {}}, containerID="containerd://c-2")
    prober.watch(subject)

    async with asyncio.timeout(PATIENCE):
        assert await runtime.ran_in.get() == "c-2"
    await prober.close()
