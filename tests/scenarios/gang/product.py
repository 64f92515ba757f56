"""Run the product on several nodes: controllers and agents that a scenario starts, kills and stops."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from hack.devnode import readyz
from hack.devnode.cluster import Cluster
from hack.devnode.controllers import Controller, Controllers
from hack.devnode.node import Agent
from tests.scenarios import training

PATIENT = ("--stop-timeout=90s", "--hold-timeout=120s")
"""For a controller that must wait as long as a scenario stops an agent, on a slow machine too."""


class Product:
    """Manage the running processes. Nodes are identified by their index, controllers by their number, from 1."""

    def __init__(self, cluster: Cluster, hub: Controllers, *, state: Path, stack: contextlib.AsyncExitStack) -> None:
        self.hub = hub
        self.agents: dict[int, Agent] = {}
        self.controllers: dict[int, Controller] = {}
        self._cluster = cluster
        self._state = state
        self._stack = stack

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, cluster: Cluster, *, state: Path) -> AsyncIterator[Self]:
        """Start nothing yet; stop everything that was started when the block ends."""
        async with Controllers.on(cluster.nodes) as hub, contextlib.AsyncExitStack() as stack:
            yield cls(cluster, hub, state=state, stack=stack)

    async def start(self, *extra: str, nodes: int) -> None:
        """Start a controller (``extra`` are its arguments), and agents on the first nodes; all are ready then."""
        await self.start_controller(*extra)
        await asyncio.gather(*(self.start_agent(index) for index in range(nodes)))

    async def start_controller(self, *extra: str, number: int = 1) -> None:
        """Start a controller."""
        self.controllers[number] = await self._stack.enter_async_context(self.hub.run(*extra, number=number))

    async def start_agent(self, index: int, *extra: str, with_hub: bool = True) -> None:
        """Start a node's agent, or start it again, and wait until every part of it works, by default the hub's too.

        ``extra`` are its arguments.
        """
        node = self._cluster.nodes[index]
        state = self._state / node.name
        agent = await self._stack.enter_async_context(self.hub.agent(node, f"--state-dir={state}", *extra))
        self.agents[index] = agent
        await readyz.until_ready(agent)
        if with_hub:
            await readyz.until(agent, lambda ready: ready["parts"]["hub"]["state"] == "ready", what="the hub")

    async def kill_agent(self, index: int) -> None:
        """SIGKILL a node's agent."""
        await self.end_agent(index, signal.SIGKILL)

    async def end_agent(self, index: int, number: signal.Signals) -> None:
        """Send a signal to a node's agent and wait for its end."""
        child = self.agents.pop(index).child
        child.signal(number)
        await child.wait(timeout=training.DEADLINE)

    async def kill_controller(self, number: int) -> None:
        """SIGKILL a controller."""
        child = self.controllers.pop(number).child
        child.signal(signal.SIGKILL)
        await child.wait(timeout=training.DEADLINE)

    def pause_agent(self, index: int) -> None:
        """Stop a node's agent (SIGSTOP): its members cannot be stopped, so the others are held."""
        self.agents[index].child.pause()

    def resume_agent(self, index: int) -> None:
        """Continue it (SIGCONT)."""
        self.agents[index].child.signal(signal.SIGCONT)
