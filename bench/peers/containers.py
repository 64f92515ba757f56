"""Measure how soon a container that fails repeatedly is back, by kubelet and by kubemend.

Three pods with the same worker, one after another: one is kubelet's alone, one has kubelet's rule RestartAllContainers
(KEP-5532), one has opted in to kubemend. Each time the worker exits with 1, and the next time comes as soon as the API
shows it running again. The time is from the signal that makes it exit to the next worker's first instruction, by a
clock that they share.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.rig import SECONDS
from hack.devnode import gang_objects, node, pulse, readyz
from hack.devnode.observer import Observer

_OPTED_IN: Final = {"kubemend.io/restart": "InPlace"}
_RULE: Final = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
_RESTARTS_ALL: Final = {"restartPolicy": "Never", "restartPolicyRules": [_RULE]}
_KUBELET_SECONDS: Final = 400.0
"""Kubelet's CrashLoopBackOff is at most five minutes."""

_LOOK_AGAIN: Final = 0.01

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """Describe a pod with one worker, which records its life in ``lives``."""

    name: str
    lives: Path
    observer: Observer

    async def exit(self) -> int:
        """Have the worker exit with 1; return the moment before it (``time.monotonic_ns``).

        On a busy machine kubelet and agent may both have started one, and the one that goes may be gone when it is
        signalled.
        """
        while True:
            (container, *_) = (await self.observer.see(self.name)).running[gang_objects.CONTAINER]
            pid = await self.observer.pid(container)
            moment = time.monotonic_ns()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
                return moment

    async def back(self, *, since: int, timeout: float) -> float:
        """Return the seconds from a moment (``time.monotonic_ns``) to the next worker's start. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not (new := self._begun(since)):  # noqa: ASYNC110 - a mapped file has no event
                await asyncio.sleep(_LOOK_AGAIN)
        return (new[-1].began - since) / 1e9

    def _begun(self, since: int) -> list[pulse.Life]:
        return [life for life in pulse.lives(self.lives) if life.began >= since]

    async def shown(self, *, restarts: int, timeout: float) -> None:
        """Wait until the API shows the worker running after that many restarts. Raises TimeoutError."""
        await self.observer.until(
            self.name,
            lambda seen: (
                seen.restart_counts.get(gang_objects.CONTAINER, -1) >= restarts
                and seen.running.get(gang_objects.CONTAINER) == (seen.container_ids[gang_objects.CONTAINER],)
            ),
            timeout=timeout,
            what=f"restart {restarts} of {self.name} in kubelet's status",
        )


async def measure(dev: node.DevNode, *, exits: int) -> Json:
    """Return the figures of all three, and how many times longer the others take for each restart."""
    async with Observer.of(dev.layout) as observer:
        kubelet = await _row(await _started(dev, observer, "by-kubelet"), count=exits, timeout=_KUBELET_SECONDS)
        ruled = await _started(dev, observer, "by-rule", container=_RESTARTS_ALL)
        everything = await _row(ruled, count=exits, timeout=_KUBELET_SECONDS)
        async with dev.agent() as agent:
            await readyz.until_ready(agent)
            opted_in = await _started(dev, observer, "by-kubemend", annotations=_OPTED_IN)
            ours = await _row(opted_in, count=exits, timeout=SECONDS)
    return {
        "kubemend_ms": _milliseconds(ours),
        "kubelet_ms": _milliseconds(kubelet),
        "restart_all_containers_ms": _milliseconds(everything),
        "ratios": {
            "kubelet": [round(their / our, 2) for our, their in zip(ours, kubelet, strict=True)],
            "restart_all_containers": [round(their / our, 2) for our, their in zip(ours, everything, strict=True)],
        },
    }


async def _row(subject: Subject, *, count: int, timeout: float) -> list[float]:
    """Have the worker exit ``count`` times; return the seconds until it was back each time. Deletes the pod."""
    seconds = []
    for number in range(count):
        moment = await subject.exit()
        seconds.append(await subject.back(since=moment, timeout=timeout))
        await subject.shown(restarts=number + 1, timeout=timeout)
    await subject.observer.delete(subject.name)
    return seconds


async def _started(
    dev: node.DevNode,
    observer: Observer,
    name: str,
    *,
    container: Mapping[str, Any] = MappingProxyType({}),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """Run a pod with a worker; return it when the API shows the worker running."""
    lives = dev.layout.root / "lives" / name
    lives.mkdir(parents=True)
    template = gang_objects.Template(name, shape=gang_objects.Shape(members=1, gpus=0), lives=lives)
    spec = template.job_object()["spec"]["template"]["spec"]
    spec["containers"] = [{**spec["containers"][0], **container}]
    await observer.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": gang_objects.NAMESPACE, "annotations": dict(annotations)},
            "spec": {"nodeName": dev.name, **spec},
        }
    )
    subject = Subject(name, lives, observer)
    await subject.shown(restarts=0, timeout=SECONDS)
    return subject


def _milliseconds(seconds: list[float]) -> list[float]:
    return [round(each * 1000, 1) for each in seconds]
