"""A control server on a real socket, with the real ``ManualRestarts`` behind it, and restarts that a test scripts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.app.control import ControlServer
from kubemend.agent.control import client, messages
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restarts.manual_requests import ManualRestarts
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.common import aio
from tests.environments import node
from tests.fakes import outside
from tests.unit.restart import builders

SECONDS = 60.0
NOW = 1000.0


@dataclass
class Restarts:
    """Records requests and runs the test's script for each."""

    does: Callable[[Request], Awaitable[None]]
    requests: list[Request] = field(default_factory=list)

    async def submit(self, request: Request) -> None:
        self.requests.append(request)
        await self.does(request)


@dataclass
class Output:
    """The output of one command, and its result."""

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
class ControlEnv:
    """The server, and its clients."""

    path: Path
    server: ControlServer
    requests: ManualRestarts
    access: "aio.Promise[RuntimeAccess]"
    restarts: Restarts
    pods: outside.Pods

    def find_runtime(self) -> None:
        """Make the runtime available."""
        self.access.fulfil(RuntimeAccess(self.restarts, events=None, runtime=None))  # type: ignore[arg-type]

    async def ask(self, output: Output | None = None, **asked: Any) -> Output:
        """Request a restart of the trainer, and follow it to the end."""
        output = output if output is not None else Output()
        wanted = RestartOverrides(
            **{name: asked.pop(name) for name in tuple(asked) if name not in ("pod", "reason", "wait")}
        )
        request = messages.RestartRequest(
            namespace="default",
            pod=asked.get("pod", builders.POD.name),
            asked=wanted,
            reason=asked.get("reason", ""),
        )
        output.code = await client.follow(
            request, socket=self.path, wait=asked.get("wait", True), show=output.events.put_nowait
        )
        return output

    @contextlib.asynccontextmanager
    async def asking(self, **asked: Any) -> AsyncIterator[tuple[Output, "asyncio.Task[Output]"]]:
        """Request a restart in the background."""
        output = Output()
        task = asyncio.create_task(self.ask(output, **asked), name="request")
        try:
            yield output, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def nothing(_: Request) -> None:
    """End immediately."""


@contextlib.asynccontextmanager
async def control_env(directory: Path, *, runtime: bool = True) -> AsyncIterator[ControlEnv]:
    """Run a control server whose socket is in that directory."""
    restarts = Restarts(does=nothing)
    async with node.node_in(directory, pods=outside.Pods(builders.pod())) as here:
        here.holders.hold()
        requests = ManualRestarts(
            verdict_store=here.verdict_store,
            pods=here.pods,
            devices=here.devices,
            holders=here.holders,
            access=here.access,
            lacking=lambda: "no socket of a runtime at /run",
            now=lambda: NOW,
        )
        async with ControlServer(path=directory / messages.SOCKET, requests=requests) as server:
            running = asyncio.create_task(server.run(), name="control")
            try:
                made = ControlEnv(directory / messages.SOCKET, server, requests, here.access, restarts, here.pods)
                if runtime:
                    made.find_runtime()
                yield made
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[ControlEnv]:
    """A control server with a runtime."""
    async with control_env(tmp_path) as made:
        yield made
