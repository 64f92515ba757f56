"""Fault: a hostile client floods the hub, while gangs on other nodes have rounds."""

import asyncio
import contextlib
import json
import signal
import socket
import statistics
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.faults import looking
from bench.faults.hostile import Booty
from bench.faults.product import Product
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode import controllers, processes
from hack.devnode.gangs import Gang

PROMISE: Final = (
    "A hostile client of the hub, with another node's token or with none, is refused and counted; other agents "
    "stay connected or reconnect, and their rounds take at most three times as long as usual."
)

_ROUNDS: Final = 3
"""Rounds that begin without backoff; a short trial has one of each kind."""

_ELSEWHERE: Final = ("nice", "-n", "10")
"""A hostile client has a machine of its own: here it shares the hub's cores, and must not take them from the gang."""

_OTHER_ADDRESS: Final = "::1"
_STRANGERS: Final = 32
_REFUSED_WITHIN: Final = 300.0
"""Seconds. Not a promise: where others use the machine, too, the hostile client comes last."""

_AT_MOST: Final = 3.0
_COUNTED: Final = (
    "NoToken", "BadToken", "WrongNode", "Malformed", "Oversized", "TooOften", "Replayed", "ForeignPod", "Crowded",
)  # fmt: skip


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Have the second node's token stolen; its agent does not run. The gangs are on the first node."""
    async with stage.product() as product:
        await product.start(*_reached(product), nodes=1)
        controller = product.controllers[1]
        async with (
            stage.gang("usual", nodes=(0,)) as usual,
            stage.gang("flooded", nodes=(0,)) as flooded,
            stage.gang("theirs", nodes=(1,)) as theirs,
        ):
            unharmed = await theirs.identities(), len(theirs.lives())
            count = _ROUNDS if scale.whole else 1
            before = await _rounds(stage, reported, usual, count=count, what="a round without a flood")
            booty = await _booty(stage, product, own=unharmed[0][0][0], gang=flooded, scale=scale)
            reported.tries(f"a flood, with {scale.connections} connections at a time among it")
            async with _flooding(booty, reported):
                await _all_refused(controller.metrics_address)
                during = await _rounds(stage, reported, flooded, count=count, what="a round in the flood")
                reported.tries("an agent is killed and started again in the flood")
                await product.end_agent(0, signal.SIGKILL)
                await product.start_agent(0)
            reported.measures("round_ms", {"as_ever": before, "in_the_flood": during})
            slower = statistics.median(during) / statistics.median(before)
            reported.measures("times_as_long", round(slower, 2))
            if scale.judges_time:
                reported.keeps(Kind.OTHERS, f"rounds took {slower:.1f} times as long", holds=slower <= _AT_MOST)
            counted = await looking.metrics(controller.metrics_address)
            reported.measures("refused", _refused(counted))
            not_let_in = _by_reason(counted, "kubemend_hub_connections_refused_total")
            reported.measures("connections_not_let_in", not_let_in)
            if scale.connections > _STRANGERS:
                reported.keeps(Kind.OTHERS, "one address had all the connections it wanted", holds=bool(not_let_in))
            reported.keeps(Kind.PROCESS, "the controller ended", holds=controller.child.returncode is None)
            defects = sum(n for name, n in counted.items() if name.startswith("kubemend_contained_failures_total"))
            reported.keeps(Kind.PROCESS, "an internal error", holds=defects == 0)
            reported.keeps(Kind.PROCESS, "the hub failed at a message", holds=not _refused(counted).get("Internal"))
            now = await theirs.identities(), len(theirs.lives())
            reported.keeps(Kind.UNASKED, "pods of the stolen node were restarted", holds=now == unharmed)


async def _rounds(stage: Stage, reported: Reported, gang: Gang, *, count: int, what: str) -> list[int]:
    """Run ``count`` rounds; return how long each took, in milliseconds. Raises TimeoutError."""
    took = []
    for number in range(1, count + 1):
        fault = await gang.end(number % gang.size, exit_code=1)
        new = await gang.all_running(since=fault, timeout=looking.SECONDS)
        took.append(round((max(life.runs_since for life in new) - fault) / 1e6))
        await stage.keeps_round(gang, reported, number=number, since=fault, what=what)
    return took


async def _booty(stage: Stage, product: Product, *, own: str, gang: Gang, scale: Scale) -> Booty:
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in await product.hub.agent_flags(stage.nodes[1]))
    return Booty(
        host=_OTHER_ADDRESS if _has_ipv6() else "127.0.0.1",
        port=_port(product),
        bundle=await asyncio.to_thread(_text, flags["hub-ca"]),
        name=controllers.HUB_NAME,
        token=await asyncio.to_thread(_text, flags["hub-token"]),
        node=stage.nodes[1].name,
        own=own,
        foreign=(await gang.identities())[0][0],
        gang=str(gang.template.key),
        connections=scale.connections,
    )


@contextlib.asynccontextmanager
async def _flooding(booty: Booty, reported: Reported) -> AsyncIterator[None]:
    """Run the hostile client for the length of the block."""
    child = await asyncio.create_subprocess_exec(
        *_ELSEWHERE, sys.executable, "-m", "bench.faults.hostile", env=processes.source_environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert child.stdin is not None
        child.stdin.write(booty.line().encode())
        await child.stdin.drain()
        yield
        out, _ = await asyncio.wait_for(child.communicate(b""), looking.SECONDS)
        reported.measures("attacks", json.loads(out))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _all_refused(address: str) -> None:
    """Wait until every kind of attack has been refused.

    Raises TimeoutError: an attack was not refused or not counted.
    """

    async def look() -> bool | None:
        refused = _refused(await looking.metrics(address))
        missing.clear()
        missing.extend(reason for reason in _COUNTED if not refused.get(reason))
        return None if missing else True

    missing: list[str] = []
    try:
        await looking.until(look, what="every kind of refusal", timeout=_REFUSED_WITHIN)
    except TimeoutError as error:
        raise TimeoutError(f"never counted: {missing}") from error


def _refused(metrics: dict[str, float]) -> dict[str, int]:
    """Return the hub's refusals, by reason."""
    return _by_reason(metrics, "kubemend_hub_refused_total")


def _by_reason(metrics: dict[str, float], name: str) -> dict[str, int]:
    prefix = name + "{"
    found = {name.removeprefix(prefix)[:-1]: int(value) for name, value in metrics.items() if name.startswith(prefix)}
    return {reason: count for reason, count in found.items() if count}


def _reached(product: Product) -> tuple[str, ...]:
    """Return the hub's settings by which the hostile client is at another address than the agents, as in a cluster.

    Without IPv6 all are at one, and the limit of one address would apply to the agents, too.
    """
    if _has_ipv6():
        return (f"--hub-address=[::]:{_port(product)}",)
    return ("--hub-unauthenticated-per-address=1024",)


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server((_OTHER_ADDRESS, 0), family=socket.AF_INET6):
        return True
    return False


def _port(product: Product) -> int:
    return int(product.hub.hub_addresses[0].rpartition(":")[2])


def _text(path: str) -> str:
    return Path(path).read_text()
