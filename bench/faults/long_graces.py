"""Fault: pods of one namespace take an hour each to end, as many of them as there are restart slots."""

import functools
import signal
from typing import Any, Final

from bench.faults import looking
from bench.faults.beating import Beating
from bench.faults.looking import Log
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage

PROMISE: Final = (
    "Any number of pods that take long to end delay neither the restart of another pod nor the end of the agent."
)

_PODS: Final = 8
"""Restarts of a node whose calls run at once (``agent.restarts.scheduler``)."""

_GRACE: Final = {"kubemend.io/grace-period": "1h"}


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Make them hang and ignore SIGTERM; then have a pod of another namespace fail, and one of their own."""
    pods = 2 * _PODS if scale.whole else _PODS
    names = [f"slow-{number}" for number in range(pods)]
    async with (
        stage.product() as product,
        stage.trainer("prompt") as trainer,
        Beating.on(stage, *names, namespace="slow", annotations=_GRACE) as slow,
        Beating.on(stage, "of-their-own", namespace="slow") as (theirs,),
    ):
        agent, log = await product.start_agent(0, alone=True), product.log(0)
        await looking.until(lambda: looking.watches(agent.metrics_address, count=pods + 1), what="all heartbeats")
        reported.tries(f"{pods} pods hang and ignore SIGTERM, with a grace period of an hour each")
        for pod in slow:
            pod.falls_silent()

        async def look() -> bool | None:
            return all(pod.was_termed() for pod in slow) or None

        await looking.until(look, what="SIGTERM for each of them")
        reported.tries("a pod of another namespace fails, and one of their own")
        old = await trainer.fails()
        reported.measures("restart_seen_after_ms", round(await trainer.replaced(old) * 1000))
        await trainer.verified(old)
        reported.keeps(Kind.RESTART, "it was not restarted in place", holds=await trainer.is_in_place())
        theirs.falls_silent()
        await theirs.replaced()
        acted = await looking.until(functools.partial(_two, log), what="the reports of two restarts")
        reported.keeps(Kind.UNASKED, f"{len(acted)} restarts for 2 that could be made", holds=len(acted) == 2)
        untouched = [await pod.is_untouched() for pod in slow]
        reported.keeps(Kind.DATA, "one was killed before its grace was over", holds=all(untouched))
        if not scale.whole:
            await product.end_agent(0, signal.SIGKILL)  # it may take 20 s when it is asked
            return
        reported.tries("the agent is asked to end, with all of them waiting")
        status = await product.end_agent(0, signal.SIGTERM)
        reported.keeps(Kind.PROCESS, f"the agent ended with {status}", holds=status == 0)


async def _two(log: Log) -> list[dict[str, Any]] | None:
    found = log.events("restart.acted")
    return found if len(found) > 1 else None
