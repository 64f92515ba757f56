"""Measure how fast a gang is back after a failure of one member, and whether new containers overlap old ones.

Twenty workers on one node are one gang. In every round one of them exits, each time another one, and the controller and
the agent, as processes, restart the whole gang. In turns with that, as many workers under the same kubelet that have
not opted in are restarted by bare stop, create and start calls, four and eight at a time. All times are the workers'
own: each records, by a clock that they share, when it began and when it was last alive. The controller is restarted now
and then, with its past rounds moved back in time: its budget would slow down a gang with short lifetimes, as it should.

Prints JSON. ``round_ms`` is from the fault to the last new worker running; ``ratio`` is its median to that of the bare
calls, the faster of the two. ``apart_ms`` is from the last sign of life of the old gang to the first of the new one,
``slipped_ms`` the longest time that a new worker ran before all old ones were dead (kubelet starts successors of its
own; ``max_of_ours`` is without those). ``stop_ms`` and ``release_ms`` are the controller's own figures, ``phases_ms``
the agent's. ``agent_cpu_ms`` is the cost of a member to the agent in a round, from the fault until the API shows all
running: other load on the machine changes it less than the times.
"""

import asyncio
import contextlib
import datetime as dt
import json
import statistics
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import click

from bench import figures, footprint
from bench.bare import BareGang
from bench.rig import SECONDS
from hack.devnode import controllers, node, readyz
from hack.devnode.gang_objects import Shape
from hack.devnode.gangs import Gang
from hack.devnode.pulse import Barrier
from hack.devnode.rounds import Rounds
from kubemend.common import logs
from kubemend.common.kube import client as kube

_AT_ONCE = (4, 8)
_ROUNDS_PER_LIFE = 3
"""Rounds that a controller starts without backoff, at any interval (``common.budgets.Backoff``)."""

_LONG_AGO = dt.timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one round. ``status`` is its Restart object's status, ``kept``: every pod still has its UID, IP and node.

    ``agent_seconds`` is the CPU time that it has cost the agent.
    """

    seconds: float
    barrier: Barrier
    adopted: int
    kept: bool
    status: dict[str, Any]
    agent_seconds: float


async def measure(*, members: int, rounds: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    samples: list[Sample] = []
    bare: dict[int, list[float]] = {at_once: [] for at_once in _AT_ONCE}
    async with node.DevNode.named("bench-gang") as dev:
        async with contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
            hub = await stack.enter_async_context(controllers.Controllers.on([dev], replicas=1))
            gang = await stack.enter_async_context(Gang.on([dev], "bench", shape=Shape(members=members, gpus=0)))
            floor = await stack.enter_async_context(BareGang.on([dev], "bare", shape=Shape(members=members, gpus=0)))
            restarts = Rounds(api, gang.template.key)
            while len(samples) < rounds:
                async with whole_product(hub, dev) as agent:
                    for _ in range(min(_ROUNDS_PER_LIFE, rounds - len(samples))):
                        samples.append(await _round(gang, restarts, agent, number=len(samples)))
                        for at_once in _AT_ONCE:
                            bare[at_once].append(await floor.restarted(at_once=at_once))
                await restarts.age(_LONG_AGO)
        kinds = dev.kinds
    return _figures(samples, bare, kinds=kinds)


@contextlib.asynccontextmanager
async def whole_product(hub: controllers.Controllers, dev: node.DevNode) -> AsyncIterator[node.Agent]:
    """Run controller and agent; yields the agent when all its components are ready, the hub too."""
    async with hub.run(), hub.agent(dev) as agent:
        await readyz.until_ready(agent, hub=True)
        yield agent


async def _round(gang: Gang, restarts: Rounds, agent: node.Agent, *, number: int) -> Sample:
    before = await gang.identities()
    spent = footprint.of(agent.child.pid).cpu_seconds
    fault = await gang.end(number % gang.size, exit_code=1)
    reported = await restarts.finished(number + 1, timeout=SECONDS)
    assert reported["status"]["phase"] == "Done", reported["status"]
    await gang.shown_running(timeout=SECONDS)
    spent = footprint.of(agent.child.pid).cpu_seconds - spent
    new = await gang.all_running(since=fault, timeout=SECONDS)
    return Sample(
        seconds=(max(life.runs_since for life in new) - fault) / 1e9,
        barrier=gang.barrier(since=fault),
        adopted=await gang.started_by_kubelet(),
        kept=await gang.identities() == before,
        status=reported["status"],
        agent_seconds=spent,
    )


def _figures(samples: list[Sample], bare: dict[int, list[float]], *, kinds: dict[str, str]) -> dict[str, Any]:
    took = [each.seconds for each in samples]
    floor = min(statistics.median(each) for each in bare.values())
    return {
        "node": kinds,
        "members": samples[0].barrier.old,
        "rounds": len(samples),
        "round_ms": [round(each * 1000, 1) for each in took],
        "bare_calls_ms": {f"{at_once} at once": figures.milliseconds(each) for at_once, each in bare.items()},
        "ratio": round(statistics.median(took) / floor, 3),
        "max_over_first": round(max(took) / took[0], 2),
        "apart_ms": {"min": _ms(min(each.barrier.apart for each in samples))},
        "slipped_ms": {
            "max": _ms(max(each.barrier.slipped for each in samples)),
            "max_of_ours": _ms(max(each.barrier.ours_slipped for each in samples)),
        },
        "adopted": sum(each.adopted for each in samples),
        "uids_and_ips_kept": all(each.kept for each in samples),
        "stop_ms": [each.status["timings"].get("stopMilliseconds") for each in samples],
        "release_ms": [each.status["timings"].get("releaseMilliseconds") for each in samples],
        "agent_cpu_ms": round(statistics.median(each.agent_seconds / each.barrier.old for each in samples) * 1000, 1),
        "phases_ms": _phases([member for each in samples for member in each.status["slowest"]]),
    }


def _phases(members: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median length of each phase of a member's restart, by its agent's clock."""
    names = dict.fromkeys(name for each in members for name in each.get("phases", {}))
    return {name: statistics.median(each.get("phases", {}).get(name, 0) for each in members) for name in names}


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 2)


@click.command(help=__doc__)
@click.option("--members", default=20, show_default=True, help="Members of the gang, all on one node.")
@click.option("--rounds", default=10, show_default=True, help="Rounds, one failure after another.")
def main(members: int, rounds: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(members=members, rounds=rounds)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
