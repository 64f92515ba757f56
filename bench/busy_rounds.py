"""Check that each round restarts every member once, and held, while the machine has no spare processor.

A gang lies on one node under a real kubelet. Busy loops, which this benchmark starts and ends, use all processors. In
every round one member exits, each time another one. A member was restarted twice if its restartCount grew by more than
one, or if more than one process of it began after the fault; it ran unheld if one of them began before the last sign of
life of the processes of the members that had to end.

Prints JSON. ``twice`` and ``unheld`` list rounds (from 0) and members; ``failed_itself`` counts those of ``twice`` that
are the members that had exited. ``held_together`` has the rounds' own messages, which must name every round of
``unheld``.
"""

import asyncio
import contextlib
import datetime as dt
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from bench import figures
from bench.gang import whole_product
from bench.rig import SECONDS
from hack.devnode import controllers, node
from hack.devnode.gang_objects import CONTAINER, Shape
from hack.devnode.gangs import Gang
from hack.devnode.rounds import Rounds
from kubemend.common import logs
from kubemend.common.kube import client as kube

_ROUNDS_PER_LIFE = 3
"""Rounds that a controller starts without backoff, at any interval (``common.budgets.Backoff``)."""

_LONG_AGO = dt.timedelta(hours=3)
_LOOP = ("/bin/sh", "-c", "while :; do :; done")


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one round. ``grew`` and ``lives`` are by member: the growth of restartCount, and the number of new
    processes.
    """

    failed: int
    seconds: float
    grew: Sequence[int]
    lives: Sequence[int]
    unheld: Sequence[int]
    adopted: int
    reported: dict[str, Any]

    @property
    def twice(self) -> list[int]:
        """Return the members that were restarted more than once."""
        return [
            index for index, (grew, lives) in enumerate(zip(self.grew, self.lives, strict=True)) if max(grew, lives) > 1
        ]

    @property
    def held_together(self) -> dict[str, str]:
        """Return the round's condition of that type."""
        found = next(each for each in self.reported["conditions"] if each["type"] == "HeldTogether")
        return {key: found[key] for key in ("status", "reason", "message")}


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep that many processors busy for the length of the block."""
    children = [subprocess.Popen(_LOOP) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def measure(*, members: int, rounds: int, loops: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    options = node.Options(gpus=0)
    async with (
        node.DevNode.named("bench-busy", options=options) as dev,
        kube.connect(kubeconfig=dev.kubeconfig) as api,
        controllers.Controllers.on([dev], replicas=1) as hub,
        Gang.on([dev], "busy", shape=Shape(members=members, gpus=0), timeout=SECONDS) as gang,
    ):
        with busy(loops):
            samples = [each async for each in _samples(dev, hub, gang, Rounds(api, gang.template.key), rounds=rounds)]
        kinds = dev.kinds
    return _figures(samples, kinds=kinds, loops=loops)


async def _samples(
    dev: node.DevNode, hub: controllers.Controllers, gang: Gang, restarts: Rounds, *, rounds: int
) -> AsyncIterator[Sample]:
    done = 0
    while done < rounds:
        async with whole_product(hub, dev):
            for _ in range(min(_ROUNDS_PER_LIFE, rounds - done)):
                yield await _round(gang, restarts, number=done)
                done += 1
        await restarts.age(_LONG_AGO)


async def _round(gang: Gang, restarts: Rounds, *, number: int) -> Sample:
    before, failed = await _counts(gang), number % gang.size
    fault = await gang.end(failed, exit_code=1)
    reported = await restarts.finished(number + 1, timeout=2 * SECONDS)
    await gang.shown_running(timeout=SECONDS)
    new = await gang.all_running(since=fault, timeout=SECONDS)
    lives = [life for life in gang.lives() if life.began >= fault]
    last_death = max(life.last for life in {old.member: old for old in gang.lives() if old.began < fault}.values())
    names = [gang.template.member(index) for index in range(gang.size)]
    count = Counter(life.member for life in lives)
    early = {life.member for life in lives if life.ran_before(last_death) > 0}
    after = await _counts(gang)
    return Sample(
        failed=failed,
        seconds=(max(life.runs_since for life in new) - fault) / 1e9,
        grew=[now - then for now, then in zip(after, before, strict=True)],
        lives=[count[name] for name in names],
        unheld=[index for index, name in enumerate(names) if name in early],
        adopted=await gang.started_by_kubelet(),
        reported=reported["status"],
    )


async def _counts(gang: Gang) -> list[int]:
    """Return the members' restartCounts from the API."""
    return [
        next(status["restartCount"] for status in pod["status"]["containerStatuses"] if status["name"] == CONTAINER)
        for pod in await gang.pods()
    ]


def _figures(samples: Sequence[Sample], *, kinds: dict[str, str], loops: int) -> dict[str, Any]:
    return {
        "node": kinds,
        "busy_loops": loops,
        "rounds": len(samples),
        "restarts": sum(len(each.grew) for each in samples),
        "twice": [(number, index) for number, each in enumerate(samples) for index in each.twice],
        "failed_itself": sum(each.failed in each.twice for each in samples),
        "unheld": [(number, index) for number, each in enumerate(samples) for index in each.unheld],
        "adopted": [each.adopted for each in samples],
        "held_together": [each.held_together for each in samples],
        "phases": Counter(each.reported["phase"] for each in samples),
        "round_ms": figures.milliseconds([each.seconds for each in samples]),
        "stop_ms": [each.reported["timings"].get("stopMilliseconds") for each in samples],
    }


@click.command(help=__doc__)
@click.option("--members", default=6, show_default=True, help="Members of the gang, all on one node.")
@click.option("--rounds", default=10, show_default=True, help="Rounds, one failure after another.")
@click.option("--loops", default=2, show_default=True, help="Busy loops that run at the same time.")
def main(members: int, rounds: int, loops: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(members=members, rounds=rounds, loops=loops)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
