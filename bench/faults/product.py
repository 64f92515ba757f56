"""Run the product on the nodes: controllers and agents as processes that a fault kills, stops and starts again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from bench.faults import looking
from bench.faults.looking import Log
from hack.devnode.cluster import Cluster
from hack.devnode.controllers import Controller, Controllers
from hack.devnode.node import Agent

PATIENT: Final = ("--stop-timeout=90s", "--hold-timeout=120s")
"""For a controller that waits as long as an agent is blocked, on a slow machine too."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Product:
    """Manage the running processes. Nodes are identified by their index, controllers by their number, from 1."""

    def __init__(self, cluster: Cluster, hub: Controllers, *, state: Path) -> None:
        self.hub = hub
        self.agents: dict[int, Agent] = {}
        self.controllers: dict[int, Controller] = {}
        self._lives: dict[int | str, contextlib.AsyncExitStack] = {}
        self._cluster = cluster
        self._state = state

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, cluster: Cluster, *, state: Path) -> AsyncIterator[Self]:
        """Start nothing yet; stop everything that was started when the block ends."""
        for node in cluster.nodes:
            node.kernel_log.clear()  # an agent reads every line of this boot, also those of the fault before
        async with Controllers.on(cluster.nodes) as hub:
            made = cls(cluster, hub, state=state)
            try:
                yield made
            finally:
                for life in reversed(made._lives.values()):
                    await life.aclose()

    def state_dir(self, index: int) -> Path:
        """Return the default state directory of a node's agent."""
        return self._state / self._cluster.nodes[index].name

    def log(self, index: int) -> Log:
        """Return the log of a node's agents from now on."""
        return Log(self._cluster.nodes[index].layout.log_file("agent"))

    def controllers_log(self, number: int = 1) -> Log:
        """Return the log of a controller from now on."""
        return Log(self._cluster.first.layout.log_file(f"controller-{number}"))

    async def start(self, *extra: str, nodes: int) -> None:
        """Start a controller (``extra`` are its arguments), and agents on the first nodes; all are ready then."""
        await self.start_controller(*extra)
        await asyncio.gather(*(self.start_agent(index) for index in range(nodes)))

    async def start_controller(self, *extra: str, number: int = 1, surroundings: Mapping[str, str] = _NOTHING) -> None:
        """Start a controller; ``surroundings`` are variables of its environment."""
        life = self._lives[f"controller-{number}"] = contextlib.AsyncExitStack()
        with _in(surroundings):
            self.controllers[number] = await life.enter_async_context(self.hub.run(*extra, number=number))

    async def start_agent(
        self, index: int, *extra: str, surroundings: Mapping[str, str] = _NOTHING, alone: bool = False
    ) -> Agent:
        """Start a node's agent, or start it again, and wait until every component is ready.

        ``alone``: without a hub.
        """
        agent = await self.launch_agent(index, *extra, surroundings=surroundings, alone=alone)
        await looking.until(
            lambda: looking.works(agent.metrics_address, hub=not alone), what=f"the agent of node {index}"
        )
        return agent

    async def launch_agent(
        self, index: int, *extra: str, surroundings: Mapping[str, str] = _NOTHING, alone: bool = False
    ) -> Agent:
        """Start a node's agent without waiting until it is ready."""
        node = self._cluster.nodes[index]
        flags = (f"--state-dir={self.state_dir(index)}", *extra)
        life = self._lives[index] = contextlib.AsyncExitStack()
        with _in(surroundings):
            started = node.agent(*flags) if alone else self.hub.agent(node, *flags)
            self.agents[index] = await life.enter_async_context(started)
        return self.agents[index]

    async def end_agent(self, index: int, how: signal.Signals) -> int:
        """End a node's agent by a signal; return its exit status."""
        child = self.agents.pop(index).child
        child.signal(how)
        child.signal(signal.SIGCONT)  # a stopped process would not even handle SIGTERM
        status = await child.wait(timeout=looking.SECONDS)
        await self._lives.pop(index).aclose()
        return status

    async def end_controller(self, number: int, how: signal.Signals) -> int:
        """End a controller by a signal; return its exit status."""
        child = self.controllers.pop(number).child
        child.signal(how)
        status = await child.wait(timeout=looking.SECONDS)
        await self._lives.pop(f"controller-{number}").aclose()
        return status

    def pause_agent(self, index: int) -> None:
        """Stop a node's agent (SIGSTOP)."""
        self.agents[index].child.pause()

    def resume_agent(self, index: int) -> None:
        """Continue it (SIGCONT)."""
        self.agents[index].child.signal(signal.SIGCONT)


@contextlib.contextmanager
def _in(surroundings: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in this process temporarily: processes of the dev node inherit them when they start."""
    before = {name: os.environ.get(name) for name in surroundings}
    os.environ.update(surroundings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
