"""``python -m bench.hub``."""

import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import click

import bench.hub
from bench import figures, footprint
from bench.hub import cluster, programs
from bench.hub.cluster import Cluster
from bench.hub.programs import Fleet
from kubemend.common import aio, logs

_PUBLISHED_SECONDS = 60.0
_ROUND_SECONDS = 60.0
_MORE_SECONDS = 0.01
"""For each member of a round: where others use the machine, too, a large one takes long."""
_PAUSE = 0.5
_PAUSES_AT_REST = 10
_RESTING = 0.1
"""Of a core, more than for the agents' pings: those of 20,000 agents alone, 2,000 a second, take more than this."""


@dataclass(slots=True)
class Rounds:
    """Hold the durations of some rounds, in seconds from the fault.

    ``answered`` is when the last member has reported Running, ``recorded`` when the Restart object shows the end, and
    ``cpu`` the controller's usage until then.
    """

    stopped: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    writes: list[list[str]] = field(default_factory=list)
    phases: set[str] = field(default_factory=set)

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {
            "rounds": len(self.released),
            "phases": sorted(self.phases),
            "fault_to_last_stop_ms": figures.milliseconds(self.stopped),
            "fault_to_last_release_ms": figures.milliseconds(self.released),
            "fault_to_last_release_answered_ms": figures.milliseconds(self.answered),
            "fault_to_recorded_ms": figures.milliseconds(self.recorded),
            "controller_cpu_ms": figures.milliseconds(self.cpu),
            "api_writes_fault_to_release": max(map(len, self.writes)),
            "api_writes": max(self.writes, key=len),
        }


async def measure(*, agents: int, part: int, rounds: int, log: Path) -> dict[str, Any]:
    """Run everything and return the figures."""
    each = programs.agents_per_connection(agents)
    load = round(os.getloadavg()[0], 2)  # the figures include the other load on these cores
    with tempfile.TemporaryDirectory(prefix="bench-hub-") as directory:
        async with (
            cluster.running(Path(directory), agents=agents) as api,
            programs.controller(kubeconfig=api.kubeconfig, log=log, agents_per_connection=each) as (hub, port),
            programs.fleet(api.places) as fleet,
        ):
            bundle = await _published(api)
            at_rest = footprint.of(hub)
            connecting = await fleet.connect(port=port, bundle=bundle, each=each)
            connected = footprint.of(hub)
            await fleet.join_broadcast()
            joined = footprint.of(hub)
            bench = await Bench.at_rest(fleet, api, hub)
            await bench.rounds(1)  # the first finds all caches cold
            alone, bare, of_part = await bench.compared(rounds, part=part)
            busy = footprint.of(hub)
            reported: dict[str, Any] = {
                "agents": agents,
                "cores": os.cpu_count(),
                "load_before": load,
                "agent_processes": -(-agents // programs.files_per_process()),
                "agents_per_connection": each,
                "connect_seconds": round(connecting, 2),
                "hub_while_connecting": connected.since(at_rest),
                "hub_memory_of_an_agent_kib": round((connected.shared_out - at_rest.shared_out) / agents / 2**10, 1),
                "hub_in_rounds": busy.since(joined),
                "alone": alone.figures(),
                "bare_broadcast": bare.figures(),
                "ratio": _ratio(alone.answered, bare.answered),
            }
            if part:
                return reported | {"growth": _growth(alone, of_part, agents=agents, part=part)}
            await fleet.disturb(api.disturbers)
            disturbed = await bench.rounds(rounds)
            slow = {**disturbed.figures(), "times_dropped": await fleet.dropped()}
            return reported | {"with_a_deaf_and_a_slow_agent": slow}


async def _published(api: Cluster) -> str:
    """Wait for the hub's certificates."""
    backoff = aio.Backoff(first=0.1, limit=0.2)
    async with asyncio.timeout(_PUBLISHED_SECONDS):
        while (bundle := await api.bundle()) is None:
            await backoff.wait()
    return bundle


@dataclass(slots=True)
class Broadcasts:
    """Hold the durations of bare broadcasts, in seconds, as of rounds."""

    stopped: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {
            "broadcasts": len(self.answered),
            "begin_to_last_first_message_ms": figures.milliseconds(self.stopped),
            "begin_to_last_second_answered_ms": figures.milliseconds(self.answered),
            "controller_cpu_ms": figures.milliseconds(self.cpu),
        }


def _growth(alone: Rounds, of_part: Rounds, *, agents: int, part: int) -> dict[str, Any]:
    return {
        "agents": agents / part,
        "part": of_part.figures(),
        "ratio": _ratio(alone.answered, of_part.answered),
    }


def _ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    return round(statistics.median(ours) / statistics.median(bare), 3)


class Bench:
    """Trigger rounds, one after another. ``hub`` is the controller's pid, ``pings`` its usage at rest, of a core."""

    def __init__(self, fleet: Fleet, api: Cluster, hub: int, *, pings: float) -> None:
        self._fleet = fleet
        self._api = api
        self._hub = hub
        self._pings = pings
        self._numbers = itertools.count()

    @classmethod
    async def at_rest(cls, fleet: Fleet, api: Cluster, hub: int) -> Self:
        """Make one for agents that are all connected, and measure what the controller uses at rest."""
        return cls(fleet, api, hub, pings=min([await _usage(hub) for _ in range(_PAUSES_AT_REST)]))

    async def compared(self, count: int, *, part: int) -> tuple[Rounds, Broadcasts, Rounds]:
        """Have rounds, bare broadcasts, and rounds of a part of the agents (0: none) in turns."""
        ours, bare, of_part = Rounds(), Broadcasts(), Rounds()
        for _ in range(count):
            await self._round(ours)
            await self._broadcast(bare)
            if part:
                await self._round(of_part, members=part)
        return ours, bare, of_part

    async def rounds(self, count: int) -> Rounds:
        """Have one member after another fail."""
        done = Rounds()
        for _ in range(count):
            await self._round(done)
        return done

    async def _round(self, done: Rounds, *, members: int | None = None) -> None:
        """Have the next member fail, and wait until all run again and the record is written.

        The first ``members`` are the gang; by default all.
        """
        number, members = next(self._numbers), members or len(self._api.places)
        await self._api.rename(f"big-{number}", members=members)
        await self._quiet()
        before = footprint.of(self._hub)
        async with asyncio.timeout(_longest(members)):
            reported = await self._fleet.round(number % members, members=members)
            recorded, phase = await self._api.finished()
        done.cpu.append(footprint.of(self._hub).cpu_seconds - before.cpu_seconds)
        began = _began(reported)
        released = _last(reported, "releases")
        done.stopped.append(_last(reported, "stops") - began)
        done.released.append(released - began)
        done.answered.append(max(each["answered"] for each in reported) - began)
        done.recorded.append(recorded - began)
        done.writes.append(self._api.writes(since=began, until=released))
        done.phases.add(phase)

    async def _broadcast(self, done: Broadcasts) -> None:
        await self._quiet()
        before = footprint.of(self._hub)
        async with asyncio.timeout(_longest(len(self._api.places))):
            reported = await self._fleet.broadcast(0)
        done.cpu.append(footprint.of(self._hub).cpu_seconds - before.cpu_seconds)
        began = _began(reported)
        done.stopped.append(_last(reported, "stops") - began)
        done.answered.append(max(each["answered"] for each in reported) - began)

    async def _quiet(self) -> None:
        """Wait until the controller has processed all changes, and is idle."""
        while await _usage(self._hub) > self._pings + _RESTING:
            pass


async def _usage(hub: int) -> float:
    """Return what the controller uses for a short time, of a core."""
    before = footprint.of(hub)
    await asyncio.sleep(_PAUSE)
    now = footprint.of(hub)
    return (now.cpu_seconds - before.cpu_seconds) / (now.at - before.at)


def _longest(members: int) -> float:
    """Return the seconds after which a round of this many members has failed."""
    return _ROUND_SECONDS + _MORE_SECONDS * members


def _began(reported: Sequence[dict[str, Any]]) -> float:
    return float(next(each["fault"] for each in reported if each["fault"] is not None))


def _last(reported: Sequence[dict[str, Any]], what: str) -> float:
    """Return the last of these times. A process may have no member of the gang."""
    return float(max(at for each in reported for at in each[what]))


@click.command(help=bench.hub.__doc__)
@click.option("--agents", default=5000, show_default=True, help="Simulated agents.")
@click.option("--rounds", default=30, show_default=True, help="Rounds without, and as many with slow agents.")
@click.option("--part", default=0, help="Also have rounds of so many of the agents, in turns with those of all.")
@click.option(
    "--log", type=click.Path(path_type=Path), default=Path("/dev/null"), help="Where the controller's log goes."
)
def main(agents: int, part: int, rounds: int, log: Path) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(agents=agents, part=part, rounds=rounds, log=log)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
