"""Run the processes of the benchmark: the controller, and those that simulate agents."""

import asyncio
import contextlib
import dataclasses
import json
import resource
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click

from bench.hub.agents import Place
from hack.devnode import loopback, processes

_SPARE_FILES: Final = 512
_FILES_EACH: Final = 3
"""Files of the hub for a connection: ``controller.hub.listener``."""
_STREAMS_EACH: Final = 2
"""Streams of an agent: its own, and one for bare broadcasts."""
_MOST_CONNECTIONS: Final = 65536
_LINE_BYTES: Final = 2**26
_STOP_SECONDS: Final = 20.0
HOST: Final = "127.0.0.1"


def files_per_process() -> int:
    """Raise the soft limit of open files to the hard one, also for children; return the connections of one process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most - _SPARE_FILES


def check_files(*, agents: int) -> None:
    """Raise ClickException unless one process, the hub, may have a connection to each agent."""
    files = files_per_process()
    if agents > (most := files // _FILES_EACH):
        raise click.ClickException(
            f"a process may open {files + _SPARE_FILES} files here, and the hub needs {_FILES_EACH} for each of "
            f"{agents} agents: raise the hard limit (ulimit -Hn), or measure {most} agents"
        )


def agents_per_connection(agents: int) -> int:
    """Return how many agents share a connection: 1, unless the hub may not open as many files (``ulimit -Hn``)."""
    return -(-agents // (files_per_process() // _FILES_EACH))


@asynccontextmanager
async def controller(*, kubeconfig: Path, log: Path, agents_per_connection: int) -> AsyncIterator[tuple[int, int]]:
    """Run the controller; yields its pid and the hub's port. It may not serve yet."""
    port = loopback.free_port()
    settings = {
        "--kubeconfig": str(kubeconfig),
        "--hub-address": f"{HOST}:{port}",
        "--hub-service": HOST,
        "--hub-connections": str(_MOST_CONNECTIONS),
        "--hub-unauthenticated-per-address": str(_MOST_CONNECTIONS),  # all agents are at one address here
        "--metrics-address": f"{HOST}:{loopback.free_port()}",
        "--log-level": "info",
    }
    arguments = [text for pair in settings.items() for text in pair]
    with log.open("wb") as out:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.hub.served", str(_STREAMS_EACH * agents_per_connection),
            "controller", *arguments, stdout=out, stderr=out,
            env=processes.source_environment(),
        )  # fmt: skip
        try:
            yield child.pid, port
        finally:
            await _ended(child)


class Fleet:
    """Manage simulated agents, in as many processes as open files require."""

    def __init__(self, children: Sequence[asyncio.subprocess.Process], shares: Sequence[Sequence[Place]]) -> None:
        self._children = children
        self._shares = shares

    async def connect(self, *, port: int, bundle: str, each: int = 1) -> float:
        """Connect all, ``each`` agents on a connection; return the seconds until the last one is welcomed."""
        common = {"do": "connect", "address": [HOST, port], "bundle": bundle, "each": each}
        reported = await asyncio.gather(
            *(
                _ask(child, {**common, "places": [dataclasses.asdict(place) for place in share]})
                for child, share in zip(self._children, self._shares, strict=True)
            )
        )
        return float(max(each["ended"] for each in reported) - min(each["began"] for each in reported))

    async def round(self, failing: int, *, members: int | None = None) -> list[dict[str, Any]]:
        """Have one agent's member fail; return each process's times when all members of its gang are released.

        The first ``members`` agents have one in it; by default all.
        """
        return await self._begun("round", failing, members=members)

    async def join_broadcast(self) -> None:
        """Open the streams for bare broadcasts."""
        await asyncio.gather(*(_ask(child, {"do": "join"}) for child in self._children))

    async def broadcast(self, first: int) -> list[dict[str, Any]]:
        """Have one agent begin a bare broadcast to all, after a round; return the same times as for a round."""
        return await self._begun("broadcast", first)

    async def _begun(self, what: str, agent: int, *, members: int | None = None) -> list[dict[str, Any]]:
        asked = []
        left = sum(map(len, self._shares)) if members is None else members
        for child, share in zip(self._children, self._shares, strict=True):
            mine, of_gang = 0 <= agent < len(share), min(left, len(share))
            asked.append(_ask(child, {"do": what, "agent": agent if mine else None, "members": of_gang}))
            agent, left = agent - len(share), left - of_gang
        return await asyncio.gather(*asked)

    async def disturb(self, places: Sequence[Place]) -> None:
        """Add agents that do not read to the first process; their members fail at its command, too."""
        await _ask(self._children[0], {"do": "disturb", "places": [dataclasses.asdict(place) for place in places]})

    async def dropped(self) -> int:
        """Return how often the hub has dropped those."""
        return int((await _ask(self._children[0], {"do": "dropped"}))["dropped"])


@asynccontextmanager
async def fleet(places: Sequence[Place]) -> AsyncIterator[Fleet]:
    """Start the processes for the agents."""
    count = -(-len(places) // files_per_process())
    share = -(-len(places) // count)
    shares = [places[at : at + share] for at in range(0, len(places), share)]
    children: list[asyncio.subprocess.Process] = []
    try:
        children += [await _simulators() for _ in shares]
        yield Fleet(children, shares)
    finally:
        for child in children:
            await _ended(child)


async def _simulators() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hub.simulators", limit=_LINE_BYTES, env=processes.source_environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _ask(child: asyncio.subprocess.Process, command: dict[str, Any]) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(command).encode() + b"\n")
    await child.stdin.drain()
    line = await child.stdout.readline()
    if not line:
        raise click.ClickException("a process of simulated agents has ended; see above")
    answer: dict[str, Any] = json.loads(line)
    return answer


async def _ended(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        await asyncio.wait_for(child.wait(), _STOP_SECONDS)
    except TimeoutError:
        child.kill()
        await child.wait()
