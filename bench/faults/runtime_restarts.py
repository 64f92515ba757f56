"""Fault: containerd is restarted, at rest and in the middle of a restart."""

import asyncio
from typing import Final

from bench.faults import looking
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode.criproxy import CriProxy, Gate

PROMISE: Final = (
    "A restart of the container runtime restarts no container, and a restart in place that it interrupts is "
    "finished afterwards."
)

_CALLS: Final = ("StopContainer", "CreateContainer", "StartContainer")


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Restart it under an agent that reaches it through a proxy, which holds single calls."""
    first = stage.nodes[0]
    proxy = CriProxy(upstream=first.layout.containerd_socket, socket=stage.directory / "cri.sock")
    async with proxy, stage.product() as product:
        agent = await product.start_agent(0, f"--cri-endpoint={proxy.socket}", alone=True)
        log = product.log(0)
        async with stage.trainer("at-rest") as bystander, stage.trainer("interrupted") as trainer:
            reported.tries("containerd is restarted while nothing happens")
            await first.containerd.restart()
            await looking.until(lambda: looking.works(agent.metrics_address, hub=False), what="the agent")
            reported.keeps(Kind.UNASKED, "something was restarted", holds=await trainer.is_untouched())
            calls = _CALLS if scale.whole else _CALLS[1:2]
            for call in calls:
                reported.tries(f"containerd is restarted at {call} of a restart")
                gate = Gate(lambda seen, call=call: seen.method == call)  # type: ignore[misc]
                proxy.hooks[:] = [gate]
                old = await trainer.fails()
                await asyncio.wait_for(gate.reached.wait(), looking.SECONDS)
                await first.containerd.restart()
                gate.open()
                await trainer.verified(old)
                reported.keeps(Kind.RESTART, f"at {call}: not in place", holds=await trainer.is_in_place())
            begun = log.events("restart.acted")
            reported.measures("restarts", len(begun))
            reported.keeps(
                Kind.UNASKED, f"{len(begun)} restarts for {len(calls)} faults", holds=len(begun) == len(calls)
            )
            reported.keeps(Kind.UNASKED, "another pod was restarted", holds=await bystander.is_untouched())
            await looking.until(lambda: looking.works(agent.metrics_address, hub=False), what="the agent")
