"""Provide a network namespace with addresses of its own: a second machine for hostile clients.

It is made by rtnetlink, in a thread without an event loop (``hack.devnode.network``); no program ``ip`` is needed. A
process holds it, which ends with this one, and its links with it.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.faults.reporting import NotTriedError
from hack.devnode import network
from kubemend.agent.sources.network import sockets

_NETWORKS: Final = tuple(f"198.{18 + number // 256}.{number % 256}" for number in range(512))
"""The /24s of 198.18.0.0/15, which is for tests of networks (RFC 2544)."""
_FIRST: Final = 2
_MOST: Final = 250
_HOLDER: Final = ("unshare", "--net", "sh", "-c", "echo; exec cat")
"""Ends when its stdin is closed. Its line means that it has a namespace."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Describe it: ``host`` is this machine's address as seen from there, ``addresses`` are those of the namespace.

    ``namespace`` is its path.
    """

    host: str
    addresses: tuple[str, ...]
    namespace: str

    def command(self, *arguments: str) -> Sequence[str]:
        """Return the command that runs another one there."""
        return ("nsenter", f"--net={self.namespace}", *arguments)


@contextlib.asynccontextmanager
async def made(*, addresses: int) -> AsyncIterator[Elsewhere]:
    """Create one for the length of the block, with at most 250 addresses. Raises NotTriedError."""
    assert addresses <= _MOST, addresses
    async with contextlib.AsyncExitStack() as stack:
        try:
            pid = await stack.enter_async_context(_namespace())
            found = await asyncio.to_thread(_connected, pid, addresses)
        except (network.NetworkError, OSError) as error:
            raise NotTriedError(f"no network namespace: {error}") from error
        yield found


@contextlib.asynccontextmanager
async def _namespace() -> AsyncIterator[int]:
    """Start the process that holds it, for the length of the block. Raises OSError."""
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(*_HOLDER, stdin=pipe, stdout=pipe, stderr=pipe)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if not await holder.stdout.readline():
            raise OSError((await holder.communicate())[1].decode().strip())
        yield holder.pid
    finally:
        holder.stdin.close()
        await holder.wait()


def _connected(pid: int, addresses: int) -> Elsewhere:
    """Connect the namespace of a process with this machine. Raises network.NetworkError or OSError."""
    where, here, there = f"/proc/{pid}/ns/net", f"km{os.getpid()}a", f"km{os.getpid()}b"
    with network.rtnetlink("connect a network namespace") as route:
        free = _free_network({each.get_attr("IFA_ADDRESS") for each in route.get_addr(family=2)})
        route.link("add", ifname=here, kind="veth", peer={"ifname": there, "net_ns_pid": pid})
        index = route.link_lookup(ifname=here)[0]
        route.addr("add", index=index, address=f"{free}.1", prefixlen=24)
        route.link("set", index=index, state="up")
    found = Elsewhere(f"{free}.1", tuple(f"{free}.{_FIRST + each}" for each in range(addresses)), where)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="elsewhere") as thread:  # ends in the namespace
        thread.submit(_give_addresses, found, there).result()
    return found


def _give_addresses(elsewhere: Elsewhere, link: str) -> None:
    """Enter the namespace and give a link there its addresses. Raises network.NetworkError or OSError.

    ``IPRoute(netns=...)`` forks instead, which was seen to hang in a process whose threads use gRPC.
    """
    sockets.enter_network_namespace(Path(elsewhere.namespace))
    with network.rtnetlink("give a network namespace its addresses") as route:
        index = route.link_lookup(ifname=link)[0]
        for address in elsewhere.addresses:
            route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")


def _free_network(addresses: set[str]) -> str:
    """Return the first three bytes of a network in which this machine, with these addresses, has none."""
    taken = {address.rpartition(".")[0] for address in addresses}
    start = os.getpid() % len(_NETWORKS)
    return next(each for each in (*_NETWORKS[start:], *_NETWORKS[:start]) if each not in taken)
