"""A control server on a real socket; behind it the engine's own ``Requests``, and restarts that a test scripts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.app.control import ControlServer
from agent.control import following, messages
from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.engine.requests import Requests
from agent.engine.restarts import Request
from agent.history.store import Store
from agent.restart.asking import Asked
from tests.fakes import outside
from tests.unit.restart import builders

SECONDS = 60.0
NOW = 1000.0


@dataclass
class Restarts:
    """Takes requests down and does with each what the test says."""

    does: Callable[[Request], Awaitable[None]]
    requests: list[Request] = field(default_factory=list)

    async def handle(self, request: Request) -> None:
        self.requests.append(request)
        await self.does(request)


@dataclass
class Told:
    """What one command has shown, and how it ended."""

    events: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    code: int | None = None

    async def until(self, name: str) -> dict[str, Any]:
        """Return the next event of that name."""
        async with asyncio.timeout(SECONDS):
            while True:
                event: dict[str, Any] = await self.events.get()
                if event["event"] == name:
                    return event


@dataclass
class Desk:
    """The server, and people before it."""

    path: Path
    server: ControlServer
    requests: Requests
    restarts: Restarts
    pods: outside.Pods

    async def ask(self, told: Told | None = None, **asked: Any) -> Told:
        """Ask for the trainer, and follow it to the end."""
        told = told if told is not None else Told()
        wanted = Asked(**{name: asked.pop(name) for name in tuple(asked) if name not in ("pod", "reason", "wait")})
        request = messages.RestartRequest(
            namespace="default",
            pod=asked.get("pod", builders.POD.name),
            asked=wanted,
            reason=asked.get("reason", ""),
        )
        told.code = await following.follow(
            request, socket=self.path, wait=asked.get("wait", True), show=told.events.put_nowait
        )
        return told

    @contextlib.asynccontextmanager
    async def asking(self, **asked: Any) -> AsyncIterator[tuple[Told, "asyncio.Task[Told]"]]:
        """Ask in the background."""
        told = Told()
        task = asyncio.create_task(self.ask(told, **asked), name="a person")
        try:
            yield told, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def nothing(_: Request) -> None:
    """End at once."""


@contextlib.asynccontextmanager
async def desk_on(directory: Path, *, runtime: bool = True) -> AsyncIterator[Desk]:
    """Open a desk whose socket is in that directory."""
    store = await Store.open(directory / "state.db")
    pods = outside.Pods(builders.pod())
    holders = outside.Holders()
    holders.hold()
    requests = Requests(
        ledger=HealthLedger(store=store, metrics=Metrics(CollectorRegistry()), boot_id="boot-1"),
        pods=pods,
        devices=outside.Devices(),
        holders=holders,
        lacking=lambda: "no socket of a runtime at /run",
        now=lambda: NOW,
    )
    restarts = Restarts(does=nothing)
    if runtime:
        requests.use_runtime(restarts=restarts)  # type: ignore[arg-type]
    try:
        async with ControlServer(path=directory / messages.SOCKET, requests=requests) as server:
            running = asyncio.create_task(server.run(), name="control")
            try:
                yield Desk(directory / messages.SOCKET, server, requests, restarts, pods)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    finally:
        await store.close()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A desk whose runtime is there."""
    async with desk_on(tmp_path) as made:
        yield made
