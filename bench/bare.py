"""The calls that any restart of a container needs, and nothing else: the floor that restarts are measured against."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from agent.actuator.tools import Material
from agent.cri.client import CriClient
from agent.engine import targets
from agent.model.workloads import ContainerRef, PodRef, PodUid, RestartPolicy
from agent.restart import intents
from agent.sources.processes import ProcFs
from bench.rig import SECONDS
from hack.devnode import gang_objects, packages, pods, pulse
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout

_LOOK_AGAIN = 0.01


@dataclass(frozen=True, slots=True)
class Prepared:
    """A restart with everything gathered that it needs, made as the product makes it."""

    target: targets.Target
    intent: intents.Intent
    material: Material


async def prepared(cri: CriClient, ref: ContainerRef, target: targets.Target) -> Prepared:
    """Prepare the restart of a container. Raises CriError."""
    intent = intents.Intent(
        id=uuid.uuid4().hex[:12],
        target=ref,
        sandbox_id=target.view.sandbox_id,
        old=target.view.id,
        old_attempt=target.view.attempt,
        order=intents.Order.of(policy=RestartPolicy.ON_FAILURE, grace_seconds=0.0),
        reason="Bench",
        created_at=time.time(),
    )
    material = await targets.material(cri, target.info, intent=intent, pod=None, processes=ProcFs())
    return Prepared(target, intent, material)


async def calls(cri: CriClient, restart: Prepared) -> None:
    """Make the three calls, with the very config that the product would use."""
    material = restart.material
    await cri.stop_container(restart.target.view.id, grace=0)
    container_id = await cri.create_container(
        sandbox_id=restart.intent.sandbox_id,
        config=material.successor.config,
        sandbox_config=material.sandbox_config,
    )
    await cri.start_container(container_id)


class BareGang:
    """So many workers on a containerd of its own, which only the benchmark touches. Make it with ``BareGang.on``."""

    def __init__(self, *, made: tuple[pods.RunningPod, ...], cri: CriClient, template: gang_objects.Template) -> None:
        self._pods = made
        self._cri = cri
        self._template = template

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, name: str, *, members: int) -> AsyncIterator[Self]:
        """Run the workers for the length of the block; yields when all of them run."""
        where = NodeLayout.named(name)
        template = gang_objects.Template(
            name,
            shape=gang_objects.Shape(members=members, gpus=0),
            lives=where.root / "lives",
        )
        containerd = Containerd(where, packages.ensure_packages())
        async with containerd, pods.Pods.on(where) as making, CriClient(str(where.containerd_socket)) as cri:
            template.lives.mkdir()
            began = time.monotonic_ns()
            made = await asyncio.gather(*(_run(making, template, index) for index in range(members)))
            gang = cls(made=tuple(made), cri=cri, template=template)
            await gang._all_running(since=began)
            yield gang

    async def restarted(self, *, at_once: int) -> float:
        """Restart all of them, so many at a time; return the seconds from the first call to the last worker's start.

        Everything is gathered before the first call, and what has exited is removed after the last one.
        """
        restarts = await asyncio.gather(*(self._prepared(pod) for pod in self._pods))
        places = asyncio.Semaphore(at_once)

        async def one(restart: Prepared) -> None:
            async with places:
                await calls(self._cri, restart)

        began = time.monotonic_ns()
        await asyncio.gather(*(one(each) for each in restarts))
        lives = await self._all_running(since=began)
        await asyncio.gather(*(self._cri.remove_container(each.target.view.id) for each in restarts))
        return (max(life.began for life in lives) - began) / 1e9

    async def _prepared(self, pod: pods.RunningPod) -> Prepared:
        named = pod.pod
        ref = ContainerRef(PodRef(named.namespace, named.name, PodUid(named.uid)), gang_objects.CONTAINER)
        target = await targets.find(self._cri, ref)
        assert target is not None
        return await prepared(self._cri, ref, target)

    async def _all_running(self, *, since: int) -> list[pulse.Life]:
        async with asyncio.timeout(SECONDS):
            while len(found := self._begun(since)) < len(self._pods):  # noqa: ASYNC110 - a mapped file has no event
                await asyncio.sleep(_LOOK_AGAIN)
        return found

    def _begun(self, since: int) -> list[pulse.Life]:
        return [life for life in pulse.lives(self._template.lives) if life.began >= since]


async def _run(making: pods.Pods, template: gang_objects.Template, index: int) -> pods.RunningPod:
    wanted = template.pod(index, name=template.member(index), node="", job_uid="")
    spec = {key: value for key, value in wanted["spec"].items() if key not in ("nodeName", "containers")}
    return await making.run(name=template.member(index), containers=wanted["spec"]["containers"], **spec)
