"""Fault: a heartbeat file lies on a file system that never answers (``hanging_fs``)."""

import asyncio
import signal
from typing import Any, Final

from bench.faults import hanging_fs, looking
from bench.faults.beating import Beating
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage

PROMISE: Final = (
    "A heartbeat file on a hanging file system restarts nothing, does not hide another pod's missing "
    "heartbeats, and does not keep the agent from exiting."
)

_INSIDE: Final = "/served"
_HUNG: Final = {"kubemend.io/heartbeat-file": f"{_INSIDE}/hangs/beat", "kubemend.io/heartbeat-timeout": "1s"}
_MANY: Final = 4


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Have the agent read such files; then another pod stops beating, and the agent is asked to end."""
    served = stage.directory / "served"
    names = [f"hung-{number}" for number in range(_MANY if scale.whole else 1)]

    def on_it(pod: dict[str, Any]) -> None:
        pod["spec"]["volumes"].append({"name": "served", "hostPath": {"path": str(served)}})
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": "served", "mountPath": _INSIDE})

    with hanging_fs.mounted(served / "hangs") as file_system:
        async with (
            stage.product() as product,
            Beating.on(stage, *names, annotations=_HUNG, change=on_it) as hung,
            Beating.on(stage, "well-behaved") as (good,),
        ):
            reported.tries("heartbeat files are on a file system that never answers")
            agent, log = await product.start_agent(0, alone=True), product.log(0)
            asked = await asyncio.to_thread(file_system.asked.wait, looking.SECONDS)
            reported.keeps(Kind.UNREPORTED, "the agent has read no such file", holds=asked)
            await looking.until(lambda: looking.watches(agent.metrics_address, count=1), what="the other heartbeat")
            good.falls_silent()
            await good.replaced()
            untouched = [await pod.is_untouched() for pod in hung]
            reported.keeps(Kind.UNASKED, "a pod whose heartbeat cannot be read was restarted", holds=all(untouched))
            acted = log.events("restart.decided", verb="act")
            reported.keeps(Kind.UNASKED, f"{len(acted)} restarts for one silence", holds=len(acted) == 1)
            reported.tries("the agent is asked to end while its reads hang")
            status = await product.end_agent(0, signal.SIGTERM)
            reported.keeps(Kind.PROCESS, f"the agent ended with {status}", holds=status == 0)
