"""Measure a gang in which one member after another fails: the time until all run again, with kubemend and upstream."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.peers import upstream
from bench.rig import SECONDS
from hack.devnode import controllers, node, readyz
from hack.devnode.gang_objects import Shape
from hack.devnode.jobsets import JobSetGang
from hack.devnode.rounds import Rounds
from kubemend.common import budgets
from kubemend.common.kube import client as kube

_FREE: Final = budgets.Backoff().free
_HEALTHY_SECONDS: Final = budgets.Backoff().healthy_after + 1.0
_UPSTREAM_SECONDS: Final = 600.0
"""Kubelet's backoff, which affects upstream, is at most five minutes, and a restart may meet it twice."""

_LOOK_AGAIN: Final = 0.05

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """Hold failures in a row.

    ``seconds``: each from the fault to the last worker running. ``kept``: all pods stayed.
    """

    seconds: tuple[float, ...]
    kept: bool

    def figures(self) -> Json:
        """Return the printed figures."""
        return {
            "failure_to_all_running_ms": [round(each * 1000, 1) for each in self.seconds],
            "max_over_first": round(max(self.seconds) / self.seconds[0], 2),
            "uids_and_ips_kept": self.kept,
        }


async def measure(dev: node.DevNode, *, members: int, failures: int) -> Json:
    """Return the figures of both, and how many times longer upstream takes for each failure."""
    ours = await _kubemend(dev, members=members, failures=failures)
    theirs = await _upstream(dev, members=members, failures=failures)
    return {
        "members": members,
        "lived_a_minute_before_failures": [each + 1 for each in range(failures) if _waits_before(each)],
        "kubemend": ours.figures(),
        "upstream_jobset": theirs.figures(),
        "ratios": [round(their / our, 2) for our, their in zip(ours.seconds, theirs.seconds, strict=True)],
    }


async def _kubemend(dev: node.DevNode, *, members: int, failures: int) -> Row:
    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(controllers.Controllers.on([dev], replicas=1))
        await stack.enter_async_context(hub.run())
        agent = await stack.enter_async_context(hub.agent(dev))
        await readyz.until_ready(agent, hub=True)
        gang = await stack.enter_async_context(
            JobSetGang.on([dev], "ours", shape=Shape(members=members, gpus=0), timeout=SECONDS)
        )
        rounds = Rounds(gang.api, gang.template.key)

        async def settled(number: int) -> None:
            ended = await rounds.finished(number + 1, timeout=SECONDS)
            assert ended["status"]["phase"] == "Done", ended["status"]

        return await _failures(gang, count=failures, settled=settled, timeout=SECONDS)


async def _upstream(dev: node.DevNode, *, members: int, failures: int) -> Row:
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
        await stack.enter_async_context(upstream.controller(dev, api))
        gang = await stack.enter_async_context(
            upstream.UpstreamGang.on([dev], "theirs", shape=Shape(members=members, gpus=0), timeout=_UPSTREAM_SECONDS)
        )

        async def settled(number: int) -> None:
            async with asyncio.timeout(_UPSTREAM_SECONDS):
                while await gang.attempt() <= number:  # noqa: ASYNC110 - rare, and not worth a watch
                    await asyncio.sleep(_LOOK_AGAIN)

        return await _failures(gang, count=failures, settled=settled, timeout=_UPSTREAM_SECONDS)


async def _failures(gang: JobSetGang, *, count: int, settled: Callable[[int], Awaitable[None]], timeout: float) -> Row:
    """Have one worker after another exit with 1, each as soon as all run again. ``settled`` returns when all are back.

    Before every fourth failure all live for a minute: kubemend's backoff applies to repeated shorter lifetimes. The
    other side has the same schedule, and its kubelet forgets failures after ten minutes only.
    """
    before = await gang.identities()
    seconds = []
    for number in range(count):
        if _waits_before(number):
            await asyncio.sleep(_HEALTHY_SECONDS)
        fault = await gang.end(number % gang.size, exit_code=1)
        await settled(number)
        await gang.shown_running(timeout=timeout)
        new = await gang.all_running(since=fault, timeout=timeout)
        seconds.append((max(life.runs_since for life in new) - fault) / 1e9)
    return Row(seconds=tuple(seconds), kept=await gang.identities() == before)


def _waits_before(number: int) -> bool:
    return bool(number) and number % _FREE == 0
