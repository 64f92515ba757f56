"""Reporters at work, on a stand-in of the API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from common.kube import client
from hack.devnode.api import standin


class Reporter(Protocol):
    """What reports for ever."""

    async def run(self) -> None: ...


@contextlib.asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[tuple[standin.StandIn, client.KubeClient]]:
    """Run a server; yields it with a client of its own. A test that uses it ends within a minute."""
    async with (
        asyncio.timeout(60),
        standin.StandIn(kubeconfig=directory / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=1.0)) as api,
    ):
        yield server, api


@contextlib.asynccontextmanager
async def started(reporter: Reporter) -> AsyncIterator[None]:
    """Have it report for the length of the block; raises what it fails with."""
    task = asyncio.create_task(reporter.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
