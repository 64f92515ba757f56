"""The second machine of hostile clients: a network namespace, made without the program ``ip``."""

import asyncio
import os
import socket
import sys

import pytest

from bench.faults import elsewhere
from bench.faults.reporting import NotTriedError
from tests import eventually, machine

DIAL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30, source_address=(sys.argv[3], 0)):
    pass
"""


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex() if name == f"km{os.getpid()}a"}


async def test_clients_have_addresses_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    machine.must_run_containers()
    programs = tmp_path_factory.mktemp("programs")
    for name in ("unshare", "nsenter", "sh", "cat"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    seen: asyncio.Queue[str] = asyncio.Queue()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.put_nowait(writer.get_extra_info("peername")[0])
        writer.close()

    async with elsewhere.made(addresses=3) as there, await asyncio.start_server(accept, there.host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        for address in there.addresses:
            command = there.command(sys.executable, "-c", DIAL, there.host, str(port), address)
            client = await asyncio.create_subprocess_exec(*command)
            assert await client.wait() == 0
            assert await seen.get() == address
        assert links()
    await eventually.true(lambda: not links())


async def test_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotTriedError, match="unshare"):
        async with elsewhere.made(addresses=1):
            pass


async def test_error_of_the_block_is_its_own() -> None:
    machine.must_run_containers()
    with pytest.raises(ConnectionError):
        async with elsewhere.made(addresses=1):
            raise ConnectionError
