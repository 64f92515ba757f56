"""Strangers without a token connect to the hub from many addresses, and leave requests to /metrics half said."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp

from bench.faults import looking, memory_cgroup
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.faults.telling import Kind, Told
from bench.memory import __main__ as memory
from hack.devnode import loopback
from hack.devnode.controllers import Controller

PROMISE: Final = (
    "However many strangers connect to the hub or leave requests half said, agents stay connected, their rounds come "
    "to their end, probes are answered, and the controller's memory stays within its limit."
)

_HOST: Final = "127.0.0.1"
_ADDRESSES: Final = 250
"""Of 127.1.0.0/24: Linux takes all of 127.0.0.0/8 for its own."""

_HALF_REQUESTS: Final = 32
_HALF: Final = b"GET /metrics HTTP/1.1\r\nHost: stranger\r\n"
_PAUSE: Final = 0.5
_PROBES: Final = 20


async def tried(stage: Stage, scale: Scale, told: Told) -> None:
    """Flood the controller; the agent and its gang are on the first node, at an address of their own."""
    probes = f"{_HOST}:{loopback.free_port()}"
    with memory_cgroup.made(f"kubemend-{stage.nodes[0].name}-strangers") as cgroup:
        cgroup.limit(memory.limit_of("controller"))
        async with stage.product() as product:
            await product.start_controller(f"--probes-address={probes}")
            controller = product.controllers[1]
            cgroup.add(controller.child.pid)
            await product.start_agent(0)
            log = product.log(0)
            async with stage.gang("amid-strangers", nodes=(0,)) as gang:
                told.tries(f"{scale.connections} connections without a token, and {_HALF_REQUESTS} half requests")
                async with _flooding(controller, connections=scale.connections) as counts:
                    await looking.until(lambda: _all_there(counts, scale.connections), what="all strangers")
                    fault = await gang.end(1, exit_code=1)
                    await stage.keeps_round(gang, told, number=1, since=fault, what="the round amid them")
                    answered = [bool(await looking.parts(probes)) for _ in range(_PROBES)]
                    told.keeps(Kind.OTHERS, f"{sum(answered)} of {_PROBES} probes answered", holds=all(answered))
                    if scale.whole:  # none is before it has been silent for 10 s
                        told.measures("sent_away", await _closed(controller))
                told.measures("attacks", dict(counts))
            lost = [each for each in log.events("part", part="hub") if each["state"] != "ready"]
            told.keeps(Kind.OTHERS, f"the agent lost its hub: {lost}", holds=not lost)
            told.keeps(Kind.PROCESS, "the controller ended", holds=controller.child.returncode is None)
            told.measures("most_used_mib", cgroup.most() >> 20)
            told.keeps(Kind.PROCESS, "it was killed for memory", holds=cgroup.kills() == 0)


@contextlib.asynccontextmanager
async def _flooding(controller: Controller, *, connections: int) -> AsyncIterator[Counter[str]]:
    """Have strangers come, and come again when they are sent away, for the length of the block; yields their number."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    hub = int(controller.hub_address.rpartition(":")[2])
    pages = int(controller.metrics_address.rpartition(":")[2])
    counts: Counter[str] = Counter()

    async def connects(number: int) -> None:
        counts["connections"] += 1
        source = (f"127.1.0.{1 + number % _ADDRESSES}", 0)
        reader, writer = await asyncio.open_connection(_HOST, hub, ssl=context, local_addr=source)
        await _until_closed(reader, writer)

    async def begins(number: int) -> None:
        del number
        counts["half_requests"] += 1
        reader, writer = await asyncio.open_connection(_HOST, pages)
        writer.write(_HALF)
        await _until_closed(reader, writer)

    strangers = [
        *(asyncio.create_task(_again_and_again(connects, number)) for number in range(connections)),
        *(asyncio.create_task(_again_and_again(begins, number)) for number in range(_HALF_REQUESTS)),
    ]
    try:
        yield counts
    finally:
        for each in strangers:
            each.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)


async def _again_and_again(way: Callable[[int], Awaitable[None]], number: int) -> None:
    while True:
        with contextlib.suppress(OSError):  # sent away, as it should be
            await way(number)
        await asyncio.sleep(_PAUSE)


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.read(4096):
            pass
    finally:
        writer.transport.abort()


async def _all_there(counts: Counter[str], connections: int) -> bool | None:
    return (counts["connections"] >= connections and counts["half_requests"] >= _HALF_REQUESTS) or None


async def _closed(controller: Controller) -> dict[str, int]:
    """Wait until strangers were sent away, and return how many by reason. Raises TimeoutError."""
    prefix = "kubemend_hub_connections_refused_total{"

    async def look() -> dict[str, int] | None:
        with contextlib.suppress(aiohttp.ClientError):  # this page is what half requests keep busy
            counted = await looking.metrics(controller.metrics_address)
            found = {name.removeprefix(prefix): int(n) for name, n in counted.items() if name.startswith(prefix) and n}
            return {name[:-1]: count for name, count in found.items()} or None
        return None

    return await looking.until(look, what="a stranger that is sent away")
