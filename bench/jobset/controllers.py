"""Run the controller of the benchmark as a process, and read its metrics."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hack.devnode import loopback, processes

HOST = "127.0.0.1"
_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Controller:
    """``port`` is the hub's, ``metrics_address`` that of /metrics."""

    pid: int
    port: int
    metrics_address: str

    async def metric(self, name: str, **labels: str) -> float:
        """Return the value of one series; 0 where there is none."""
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.get(f"http://{self.metrics_address}/metrics") as answer,
        ):
            text = await answer.text()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return next((each.value for each in samples if each.name == name and each.labels == labels), 0.0)


@asynccontextmanager
async def controller(*, kubeconfig: Path, directory: Path) -> AsyncIterator[Controller]:
    """Run it; it may not serve yet."""
    port, metrics_address = loopback.free_port(), f"{HOST}:{loopback.free_port()}"
    flags = {
        "kubeconfig": str(kubeconfig),
        "hub-address": f"{HOST}:{port}",
        "hub-service": HOST,
        "metrics-address": metrics_address,
    }
    child = processes.Child.start(
        [sys.executable, "-m", "kubemend.cli", "controller", *(f"--{key}={value}" for key, value in flags.items())],
        name="kubemend controller",
        log=directory / "controller.log",
        pid_file=directory / "controller.pid",
        environment=processes.source_environment(),
    )
    try:
        yield Controller(child.pid, port, metrics_address)
    finally:
        await child.stop(grace=_STOP_SECONDS)
