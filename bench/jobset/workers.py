"""Measure twenty workers of one JobSet, with real containers, five failures in a row."""

import asyncio
import contextlib
from typing import Any, Final

from bench.rig import SECONDS
from hack.devnode import controllers, jobsets, node, readyz
from hack.devnode.gang_objects import Shape
from hack.devnode.jobsets import JobSetGang
from hack.devnode.rounds import Rounds
from kubemend.common import budgets

_HEALTHY_SECONDS: Final = budgets.Backoff().healthy_after + 1.0
_FREE: Final = budgets.Backoff().free
_LOOK_AGAIN: Final = 0.05

Json = dict[str, Any]


async def measure(*, members: int, failures: int) -> Json:
    """Return the figures."""
    seconds: list[float] = []
    waited: list[int] = []
    async with (
        node.DevNode.named("bench-jobset") as dev,
        controllers.Controllers.on([dev], replicas=1) as hub,
        jobsets.run_on(dev),
        hub.run(),
        hub.agent(dev) as agent,
        contextlib.AsyncExitStack() as stack,
    ):
        await readyz.until_ready(agent, hub=True)
        gang = await stack.enter_async_context(
            JobSetGang.on([dev], "bench", shape=Shape(members=members, gpus=0), timeout=SECONDS)
        )
        before = await gang.identities()
        for number in range(failures):
            if number and number % _FREE == 0:
                waited.append(number)
                await asyncio.sleep(_HEALTHY_SECONDS)
            seconds.append(await _failure(gang, number=number))
        kept = await gang.identities() == before
        status = (await gang.reported())["status"]
        kinds = dev.kinds
    return {
        "node": kinds,
        "workers": members,
        "failure_to_all_running_ms": [round(each * 1000, 1) for each in seconds],
        "max_over_first": round(max(seconds) / seconds[0], 2),
        "lived_a_minute_before_failures": [each + 1 for each in waited],
        "uids_and_ips_kept": kept,
        "restarts_counted": status["restartsCountTowardsMax"],
        "in_place_attempt": status["currentInPlaceRestartAttempt"],
    }


async def _failure(gang: JobSetGang, *, number: int) -> float:
    """Have a worker exit; return the seconds until all run again."""
    restarts = Rounds(gang.api, gang.template.key)
    fault = await gang.end(number % gang.size, exit_code=1)
    reported = await restarts.finished(number + 1, timeout=SECONDS)
    assert reported["status"]["phase"] == "Done", reported["status"]
    await gang.shown_running(timeout=SECONDS)
    new = await gang.all_running(since=fault, timeout=SECONDS)
    async with asyncio.timeout(SECONDS):
        while (await gang.reported())["status"].get("currentInPlaceRestartAttempt") != number + 1:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN)
    return (max(life.runs_since for life in new) - fault) / 1e9
