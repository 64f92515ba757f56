"""A control socket for tests: place kubelet's relist exactly, and wait until it has done what it wanted.

One JSON object per line in, one out. ``{"do": "hold"}`` stops the periodic relist, and lets no pass wait for one;
``{"do": "relist"}`` looks once and answers when every pod that this woke has been synced, ``{"do": "look"}`` looks
once and does not wait for what comes of it, ``{"do": "release"}`` goes on as usual, ``{"do": "resync"}`` syncs every
pod as the 60-90 s timer would, ``{"do": "gc"}`` collects dead containers as the minute timer would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hack.devnode.kubelet import sockets

Command = Callable[[], Awaitable[None]]


@asynccontextmanager
async def serve(commands: Mapping[str, Command], *, socket: Path) -> AsyncIterator[None]:
    """Serve the commands on a unix socket until the context ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(json.dumps(await _obey(line, commands)).encode() + b"\n")
            await writer.drain()
        writer.close()

    sockets.clear_way(socket)
    server = await asyncio.start_unix_server(answer, path=socket)
    try:
        yield
    finally:
        server.close()
        sockets.clear_way(socket)


async def _obey(line: bytes, commands: Mapping[str, Command]) -> dict[str, str]:
    try:
        name = json.loads(line).get("do", "")
    except (ValueError, AttributeError):
        return {"error": "not a JSON object"}
    if name not in commands:
        return {"error": f"no such command: {name!r} (there are {', '.join(sorted(commands))})"}
    await commands[name]()
    return {"done": name}


class ControlError(RuntimeError):
    """The kubelet stand-in did not do what it was told."""


class Control:
    """The client's side, for tests: ``await Control(path).relist()``."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def hold(self) -> None:
        """Let kubelet look at the runtime no more until ``release`` (but for ``relist`` and ``look``).

        What it had to do by then is done, so that it acts only on what a look shows that is asked for.
        """
        await self._do("hold")

    async def release(self) -> None:
        """Let kubelet look again every second."""
        await self._do("release")

    async def relist(self) -> None:
        """Look once; returns when all that follows from it has been done."""
        await self._do("relist")

    async def look(self) -> None:
        """Look once; returns when it has seen all, and is about to act on that."""
        await self._do("look")

    async def resync(self) -> None:
        """Sync every pod as kubelet does about once a minute, from what the last look has shown."""
        await self._do("resync")

    async def gc(self) -> None:
        """Collect dead containers as kubelet does once a minute."""
        await self._do("gc")

    async def _do(self, command: str) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(json.dumps({"do": command}).encode() + b"\n")
            await writer.drain()
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
            await writer.wait_closed()
        if "error" in answer:
            raise ControlError(f"{command}: {answer['error']}")
