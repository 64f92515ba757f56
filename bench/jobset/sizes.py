"""Measure JobSets of different sizes."""

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from bench import figures, footprint
from bench.hub import programs
from bench.hub.programs import Fleet
from bench.jobset import cluster, controllers
from bench.jobset.cluster import Cluster
from bench.jobset.controllers import Controller
from kubemend.common import aio

ROUNDS: Final = 3
"""Rounds that begin without backoff, at any interval (``common.budgets.Backoff``)."""

_SECONDS: Final = "kubemend_jobset_reconcile_seconds"
_QUIET_SECONDS: Final = 1.0
_LOOK_AGAIN: Final = 0.02
_PUBLISHED_SECONDS: Final = 60.0
_MIB: Final = 1024 * 1024

Json = dict[str, Any]


async def measure(jobs: int, *, looks: int) -> Json:
    """Return the figures of a JobSet of that many Jobs."""
    programs.check_files(agents=jobs)
    with tempfile.TemporaryDirectory(prefix="bench-jobset-") as name:
        directory = Path(name)
        async with (
            cluster.running(directory, jobs=jobs) as api,
            controllers.controller(kubeconfig=api.kubeconfig, directory=directory) as controller,
        ):
            bundle = await _published(api)
            created = await _create(api)
            await api.start_pods()
            await api.until(lambda: _all_ready(api))
            await _quiet(api, controller)
            looked = await _looks(api, controller, count=looks)
            async with programs.fleet(api.places) as fleet:
                await fleet.connect(port=controller.port, bundle=bundle)
                restarts = [await _restart(api, controller, fleet, number) for number in range(ROUNDS)]
            resident = max(footprint.of(controller.pid).resident.values())
    return {
        "jobs": jobs,
        "creation": created,
        **looked,
        "restart_ms": [each["milliseconds"] for each in restarts],
        "api_calls_per_restart": [sum(each["calls"].values()) for each in restarts],
        "api_calls_of_one": dict(restarts[-1]["calls"]),
        "controller_rss_mib": round(resident / _MIB, 1),
    }


def growth(smallest: Json, largest: Json) -> Json:
    """Return the cost of the largest JobSet over that of the smallest."""
    return {
        "jobs": round(largest["jobs"] / smallest["jobs"]),
        "look": round(largest["look_ms"]["p50"] / smallest["look_ms"]["p50"], 1),
        "api_calls_per_look": largest["api_calls_per_look"] - smallest["api_calls_per_look"],
        "api_calls_per_restart": round(
            statistics.median(largest["api_calls_per_restart"]) / statistics.median(smallest["api_calls_per_restart"]),
            2,
        ),
    }


async def _published(api: Cluster) -> str:
    """Wait for the hub's certificates: the controller leads then."""
    async with asyncio.timeout(_PUBLISHED_SECONDS):
        async for _ in aio.ticks(period=_LOOK_AGAIN):
            if (bundle := await api.bundle()) is not None:
                return bundle
    raise AssertionError("ticks never end")


async def _create(api: Cluster) -> Json:
    before, began = api.calls, time.monotonic()
    await api.create_jobset()
    await api.until(lambda: _all_made(api, before))
    return {"seconds": round(time.monotonic() - began, 2), "api_calls": dict(api.calls - before)}


async def _all_made(api: Cluster, before: Counter[str]) -> bool:
    return (api.calls - before)["POST jobs"] >= api.size


async def _all_ready(api: Cluster) -> bool:
    counts = (await api.status()).get("replicatedJobsStatus") or ()
    return api.size == sum(int(each["ready"]) for each in counts)


async def _looks(api: Cluster, controller: Controller, *, count: int) -> Json:
    """Have the JobSet reconciled with nothing to do, repeatedly."""
    whole, decide = [], []
    before = api.calls
    for number in range(count):
        done = await controller.metric(f"{_SECONDS}_count", step="whole")
        sums = [await controller.metric(f"{_SECONDS}_sum", step=step) for step in ("whole", "decide")]
        await api.touch(number)
        async with asyncio.timeout(_PUBLISHED_SECONDS):
            while await controller.metric(f"{_SECONDS}_count", step="whole") == done:  # noqa: ASYNC110 - it is polled
                await asyncio.sleep(_LOOK_AGAIN)
        looked = await controller.metric(f"{_SECONDS}_count", step="whole") - done
        whole.append((await controller.metric(f"{_SECONDS}_sum", step="whole") - sums[0]) / looked)
        decide.append((await controller.metric(f"{_SECONDS}_sum", step="decide") - sums[1]) / looked)
    return {
        "looks": count,
        "look_ms": figures.milliseconds(whole),
        "decide_ms": figures.milliseconds(decide),
        "api_calls_per_look": sum((api.calls - before).values()) / count,
    }


async def _restart(api: Cluster, controller: Controller, fleet: Fleet, number: int) -> Json:
    """Have a member fail, and wait until all run again and the JobSet's status shows it."""
    await _quiet(api, controller)
    before = api.calls
    reported = await fleet.round(number % api.size)

    async def is_counted() -> bool:
        counted = (await api.status()).get("currentInPlaceRestartAttempt") or 0
        return counted > number and await api.ended_rounds() > number

    await api.until(is_counted)
    await _quiet(api, controller)
    began = next(each["fault"] for each in reported if each["fault"] is not None)
    return {
        "milliseconds": round((max(each["answered"] for each in reported) - began) * 1000, 1),
        "calls": api.calls - before,
    }


async def _quiet(api: Cluster, controller: Controller) -> None:
    """Wait until the controller sends no requests to the API server and reconciles nothing."""

    async def done() -> tuple[Counter[str], float]:
        return api.calls, await controller.metric(f"{_SECONDS}_count", step="whole")

    before = await done()
    while True:
        await asyncio.sleep(_QUIET_SECONDS)
        if before == (before := await done()):
            return
