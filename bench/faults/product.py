"""The product on the nodes: controllers and agents as processes that a fault kills, stops and starts again."""

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

PATIENT: Final = ("--stop-seconds=90", "--hold-seconds=120")
"""For a controller that waits as long as an agent is held up, on a slow machine too."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Product:
    """What runs of the product. Nodes are called by their index, controllers by their number, from 1."""

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
        """Start nothing yet; stop all that was started when the block ends."""
        for node in cluster.nodes:
            node.kernel_log.clear()  # an agent believes every line of this boot, also those of the fault before
        async with Controllers.on(cluster.nodes) as hub:
            made = cls(cluster, hub, state=state)
            try:
                yield made
            finally:
                for life in reversed(made._lives.values()):
                    await life.aclose()

    def state_dir(self, index: int) -> Path:
        """Return where a node's agent keeps its journal, unless it is told otherwise."""
        return self._state / self._cluster.nodes[index].name

    def log(self, index: int) -> Log:
        """Return what a node's agents log from now on."""
        return Log(self._cluster.nodes[index].layout.log_file("agent"))

    def controllers_log(self, number: int = 1) -> Log:
        """Return what a controller logs from now on."""
        return Log(self._cluster.first.layout.log_file(f"controller-{number}"))

    async def start(self, *extra: str, nodes: int) -> None:
        """Start a controller (``extra`` are its arguments), and agents on the first nodes; all work then."""
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
        """Start a node's agent, or start it again, and wait until every part of it works. ``alone``: without a hub."""
        agent = await self.launch_agent(index, *extra, surroundings=surroundings, alone=alone)
        await looking.until(
            lambda: looking.works(agent.metrics_address, hub=not alone), what=f"the agent of node {index}"
        )
        return agent

    async def launch_agent(
        self, index: int, *extra: str, surroundings: Mapping[str, str] = _NOTHING, alone: bool = False
    ) -> Agent:
        """Start a node's agent, and do not wait until it works."""
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
        child.signal(signal.SIGCONT)  # one that stands still would not even see SIGTERM
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
        """Have a node's agent stand still (SIGSTOP)."""
        self.agents[index].child.pause()

    def resume_agent(self, index: int) -> None:
        """Let it go on (SIGCONT)."""
        self.agents[index].child.signal(signal.SIGCONT)


@contextlib.contextmanager
def _in(surroundings: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in our environment for a moment: processes of the dev node inherit it when they start."""
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
