"""Record every state of a pod that the API shows, change by change."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubemend.common.kube import client as kube
from kubemend.common.kube import paths


@dataclass
class Watched:
    """Every API state of one pod's trainer, change by change."""

    counts: list[int] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    not_running: list[Mapping[str, Any]] = field(default_factory=list)
    conditions: list[tuple[float, str, str, str]] = field(default_factory=list)
    """Each change of a condition: the Unix time at which it arrived, its type, status and reason."""

    def take(self, pod: Mapping[str, Any]) -> None:
        """Record one state of the pod."""
        for each in pod.get("status", {}).get("conditions", ()):
            now = (each["type"], each["status"], each.get("reason", ""))
            if next((old[1:] for old in reversed(self.conditions) if old[1] == now[0]), None) != now:
                self.conditions.append((time.time(), *now))
        for status in pod.get("status", {}).get("containerStatuses", ()):
            state = status.get("state", {})
            self.counts.append(int(status["restartCount"]))
            if "running" not in state:
                self.not_running.append(state)
            if reason := state.get("waiting", {}).get("reason"):
                self.waits.append(reason)


@contextlib.asynccontextmanager
async def watched(api: kube.KubeClient, name: str) -> AsyncIterator[Watched]:
    """Watch a pod for the length of the block; no state in the API is missed."""
    found = Watched()
    path = paths.collection("pods", namespace="default")
    listing = await api.list(path)
    watch = api.watch(path, resource_version=listing.resource_version)

    async def follow() -> None:
        async with contextlib.aclosing(watch) as changes:
            async for change in changes:
                if change.object["metadata"].get("name") == name:
                    found.take(change.object)
        raise AssertionError("the watch has ended early")

    following_it = asyncio.create_task(follow(), name=f"watch of {name}")
    try:
        yield found
    finally:
        ended_early = following_it.done()
        following_it.cancel()
        await asyncio.gather(following_it, return_exceptions=True)
        assert not ended_early, "the watch has ended early"
