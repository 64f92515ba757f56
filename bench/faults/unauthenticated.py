"""Fault: clients without a token connect to the hub from many addresses, and send half requests to /metrics."""

import asyncio
import collections
import contextlib
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp

from bench.faults import crowd, elsewhere, looking, memory_cgroup
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.memory import __main__ as memory
from hack.devnode import loopback, processes, readyz
from hack.devnode.controllers import Controller
from kubemend.controller.hub.limits import Caps

PROMISE: Final = (
    "Any number of unauthenticated clients that connect to the hub or send partial requests leave agents "
    "connected, rounds finishing, probes answered, and the controller's memory within its limit."
)

_HOST: Final = "127.0.0.1"
_ADDRESSES: Final = 250
_NICE: Final = ("nice", "-n", "10")
"""These clients have machines of their own: here they share the hub's cores, and must not take them from the gang."""

_CONNECTIONS_OF_A_PROCESS: Final = 10_000
_HALF_REQUESTS: Final = 32
_HALF: Final = b"GET /metrics HTTP/1.1\r\nHost: stranger\r\n"
_PAUSE: Final = 0.5
_PROBES: Final = 20
_TRIED_WITHIN: Final = 600.0
"""Seconds. Not a promise: where others use the machine, too, these clients come last."""

_REFUSED: Final = "kubemend_hub_connections_refused_total{"
_CONNECTIONS: Final = "kubemend_hub_connections"


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Flood the controller; the agent and its gang are on the first node, at an address of their own."""
    probes = f"{_HOST}:{loopback.free_port()}"
    with memory_cgroup.made(f"kubemend-{stage.nodes[0].name}-strangers") as cgroup:
        cgroup.limit(memory.limit_of("controller"))
        async with elsewhere.made(addresses=_ADDRESSES) as there, stage.product() as product:
            port = int(product.hub.hub_addresses[0].rpartition(":")[2])
            await product.start_controller(f"--probes-address={probes}", f"--hub-address=0.0.0.0:{port}")
            controller = product.controllers[1]
            cgroup.add(controller.child.pid)
            await product.start_agent(0)
            log = product.log(0)
            wanted = crowd.Wanted(there.host, port, scale.strangers, there.addresses)
            async with stage.gang("amid-strangers", nodes=(0,)) as gang:
                reported.tries(f"{scale.strangers} connections without a token, and {_HALF_REQUESTS} half requests")
                async with _half_requests(controller), _crowding(there, wanted, reported):
                    await _keeps_bounds(controller, scale, reported)
                    fault = await gang.end(1, exit_code=1)
                    await stage.keeps_round(gang, reported, number=1, since=fault, what="the round among them")
                    answered = [bool((await readyz.report(probes))["parts"]) for _ in range(_PROBES)]
                    reported.keeps(Kind.OTHERS, f"{sum(answered)} of {_PROBES} probes answered", holds=all(answered))
                    await _keeps_bounds(controller, scale, reported, silent=scale.whole)
            lost = [each for each in log.events("component", part="hub") if each["state"] != "ready"]
            reported.keeps(Kind.OTHERS, f"the agent lost its hub: {lost}", holds=not lost)
            reported.keeps(Kind.PROCESS, "the controller ended", holds=controller.child.returncode is None)
            reported.measures("most_used_mib", cgroup.most() >> 20)
            reported.keeps(Kind.PROCESS, "it was killed for memory", holds=cgroup.kills() == 0)


async def _keeps_bounds(controller: Controller, scale: Scale, reported: Reported, *, silent: bool = False) -> None:
    """Check the hub's connection metrics: connections of one address were cut, and the total is bounded."""
    caps = Caps()
    awaited = {"Crowded"} if scale.strangers > 2 * caps.unauthenticated_of_address else set()
    if silent:
        awaited.add("Silent")  # none has been silent for 10 s before
    found = await _counted(controller, awaited=awaited)
    reported.measures("sent_away", {name[len(_REFUSED) : -1]: int(n) for name, n in found.items() if _REFUSED in name})
    reported.measures("connections", int(found[_CONNECTIONS]))
    most = caps.unauthenticated + 2  # and the agent's, which may have a second one for a moment
    reported.keeps(Kind.OTHERS, f"{found[_CONNECTIONS]:.0f} connections at a time", holds=found[_CONNECTIONS] <= most)


async def _counted(controller: Controller, *, awaited: set[str]) -> Mapping[str, float]:
    """Wait until connections were closed for these reasons, and return the hub's metrics. Raises TimeoutError."""

    async def look() -> Mapping[str, float] | None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # half requests keep this page busy
            found = await looking.metrics(controller.metrics_address)
            if all(found.get(f"{_REFUSED}{reason}}}") for reason in awaited):
                return found
        return None

    return await looking.until(look, what=f"strangers that are sent away as {', '.join(sorted(awaited))}")


@contextlib.asynccontextmanager
async def _crowding(there: elsewhere.Elsewhere, wanted: crowd.Wanted, reported: Reported) -> AsyncIterator[None]:
    """Have all clients connect, and reconnect when they are closed, for the length of the block."""
    async with contextlib.AsyncExitStack() as children:
        begun = [
            await children.enter_async_context(_running(there))
            for _ in range(0, wanted.connections, _CONNECTIONS_OF_A_PROCESS)
        ]
        share = -(-wanted.connections // len(begun))
        await asyncio.gather(*(_begin(child, dataclasses.replace(wanted, connections=share)) for child in begun))
        reported.measures("connections_tried", share * len(begun))
        yield
        ended = await asyncio.gather(*(asyncio.wait_for(each.communicate(b""), looking.SECONDS) for each in begun))
        counts = [collections.Counter(json.loads(out)) for out, _ in ended]
        reported.measures("strangers", sum(counts, collections.Counter()))


async def _begin(child: asyncio.subprocess.Process, wanted: crowd.Wanted) -> None:
    """Have a process connect; return when it has opened each connection once, or was refused."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(wanted.line().encode())
    await child.stdin.drain()
    if not await asyncio.wait_for(child.stdout.readline(), _TRIED_WITHIN):
        raise RuntimeError(f"no strangers: {(await child.communicate())[1].decode()[-1000:]}")


@contextlib.asynccontextmanager
async def _running(there: elsewhere.Elsewhere) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *there.command(*_NICE, sys.executable, "-m", "bench.faults.crowd"), env=processes.source_environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@contextlib.asynccontextmanager
async def _half_requests(controller: Controller) -> AsyncIterator[None]:
    """Leave requests for the controller's metrics half sent for the length of the block."""
    port = int(controller.metrics_address.rpartition(":")[2])

    async def begin() -> None:
        while True:
            with contextlib.suppress(OSError):  # closed, as it should be
                reader, writer = await asyncio.open_connection(_HOST, port)
                try:
                    writer.write(_HALF)
                    while await reader.read(4096):
                        pass
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE)

    begun = [asyncio.create_task(begin()) for _ in range(_HALF_REQUESTS)]
    try:
        yield
    finally:
        for each in begun:
            each.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
