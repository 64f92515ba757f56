"""Fault: the agent has 50 MB above its usage at rest, during floods of log lines, pods and restarts."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Final

from bench.faults import looking, memory_cgroup, pod_storm
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.faults.trainers import Trainer
from hack.devnode.node import DevNode
from kubemend.agent.model.workloads import ContainerId

PROMISE: Final = (
    "An agent with 50 MB more than it uses at rest is not OOM-killed by a flood of log lines, pods and "
    "restarts; after an agent is killed during a restart, the next one finishes it."
)

_FREE: Final = 50_000_000
_TRAINERS: Final = 3
_LINES_AT_ONCE: Final = 200
_CHATTER: Final = "nvidia-fs: nothing of note, but there is much of it"
_LINES_READ: Final = "kubemend_kernel_log_records_read_total"


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Flood it, then kill it in a restart as the kernel would. The pods are on the second node (``pod_storm``)."""
    dev = stage.nodes[1]
    async with contextlib.AsyncExitStack() as stack:
        cgroup = stack.enter_context(memory_cgroup.made(f"kubemend-{dev.name}"))
        product = await stack.enter_async_context(stage.product())
        trainers = [
            await stack.enter_async_context(stage.trainer(f"pressed-{number}", node=1)) for number in range(_TRAINERS)
        ]
        agent = await product.launch_agent(1, alone=True)
        cgroup.add(agent.child.pid)
        await looking.until(lambda: looking.works(agent.metrics_address, hub=False), what="the agent")
        log, at_rest = product.log(1), cgroup.used()
        cgroup.limit(at_rest + _FREE)
        reported.measures("at_rest_mb", round(at_rest / 1e6, 1))
        reported.tries(f"{scale.log_lines} log lines, {scale.changes} changes of pods and {_TRAINERS} restarts at once")
        olds = await _flooded(stage, scale, dev=dev, trainers=trainers)
        for trainer in trainers:
            await trainer.replaced(olds[trainer.name])
            reported.keeps(
                Kind.RESTART, f"{trainer.name} was not restarted in place", holds=await trainer.is_in_place()
            )
        after = await _all_read(agent.metrics_address, lines=scale.log_lines)
        reported.measures("lines_read", int(after[_LINES_READ]))
        reported.measures("most_used_mb", round(cgroup.most() / 1e6, 1))
        reported.keeps(Kind.PROCESS, "it was killed for memory", holds=cgroup.kills() == 0)
        reported.keeps(Kind.PROCESS, "it ended", holds=agent.child.returncode is None)
        reported.keeps(Kind.DECISION, "a finding was dropped", holds=after["kubemend_findings_lost_total"] == 0)
        acted = log.events("restart.acted")
        reported.keeps(Kind.UNASKED, f"{len(acted)} restarts for {_TRAINERS} faults", holds=len(acted) == _TRAINERS)
        reported.tries("it is killed as soon as three pods have failed, and another one is started")
        olds = {trainer.name: await trainer.fails() for trainer in trainers}
        await product.end_agent(1, signal.SIGKILL)
        await product.start_agent(1, alone=True)
        for trainer in trainers:
            await trainer.replaced(olds[trainer.name])
            reported.keeps(Kind.RESTART, f"{trainer.name} was lost by the kill", holds=await trainer.is_in_place())


async def _flooded(stage: Stage, scale: Scale, *, dev: DevNode, trainers: Sequence[Trainer]) -> dict[str, ContainerId]:
    """Flood the node's agent, and have every pod fail during it; return the failed containers, by pod."""
    await dev.kubelet.stop()  # it would run them all
    try:
        async with pod_storm.storming(
            stage.api, node=dev.name, pods=scale.changes // pod_storm.CHANGES_OF_A_POD
        ) as storm:
            await _chatter(dev, lines=scale.log_lines // 2)
            olds = {trainer.name: await trainer.fails() for trainer in trainers}
            await _chatter(dev, lines=scale.log_lines - scale.log_lines // 2)
            await storm
    finally:
        await dev.kubelet.start()
    return olds


async def _chatter(dev: DevNode, *, lines: int) -> None:
    for number in range(lines):
        dev.kernel_log.write(f"{_CHATTER}: {number}")
        if number % _LINES_AT_ONCE == 0:
            await asyncio.sleep(0)


async def _all_read(address: str, *, lines: int) -> dict[str, float]:
    """Wait until the agent has read ``lines`` lines of the log; return its metrics. Raises TimeoutError."""

    async def look() -> dict[str, float] | None:
        metrics = await looking.metrics(address)
        return metrics if metrics[_LINES_READ] >= lines else None

    return await looking.until(look, what=f"{lines} lines that are read")
