"""Swap the container ``main`` of pods that no kubelet watches, on a real runtime."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hack.devnode import patience
from hack.devnode.layout import NodeLayout
from kubemend.agent import ports
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary, PodRef, PodUid
from kubemend.agent.restart import intents
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.agent.restarts import runtime_state
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.processes import ProcFs
from tests.devnode.pods import RunningPod


def mark_owner(node: NodeLayout, *, directory: Path) -> str:
    """Return the owner in the marks of the agents of one test, whose state is in ``directory``.

    The last resort of an agent of another test may still run: it would remove the successors of this test's agents.
    """
    return f"{node.name}:{directory}"


@dataclass(frozen=True, slots=True)
class Swaps:
    """The services of swaps on one runtime."""

    cri: CriClient
    watch: ContainerWatch

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, socket: str) -> AsyncIterator[Self]:
        """Connect to the runtime behind a socket and watch its containers, for the block."""
        async with CriClient(socket, deadlines=patience.RUNTIME) as cri:
            watch = ContainerWatch(cri, report=lambda _: None)
            watching = asyncio.create_task(watch.run(), name="watch")
            await watch.until_listed()
            yield cls(cri, watch)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def prepared(
        self,
        running: RunningPod,
        *,
        order: intents.SwapOrder,
        old: ContainerSummary | None = None,
        holders: ports.Holders | None = None,
    ) -> tuple[intents.Intent, SuccessorSpec]:
        """Return the intent of a swap, and its successor's spec. ``old`` None: the newest container is replaced.

        ``holders``: kubelet's answer about the pod's devices.
        """
        ref = ContainerRef(PodRef("default", running.pod.name, PodUid(running.pod.uid)), "main")
        target = await runtime_state.find(self.cri, ref)
        assert target is not None
        assert target.facts(now=time.time()).not_cloneable is None
        replaced = old if old is not None else target.view
        intent = intents.Intent(
            id=f"swap-{running.pod.name}",
            target=ref,
            sandbox_id=target.view.sandbox_id,
            old=replaced.id,
            old_attempt=replaced.attempt,
            order=order,
            reason="Test",
            created_at=time.time(),
        )
        info = target.info if old is None else await self.cri.container_status(old.id)
        made = await runtime_state.successor_spec(
            self.cri, info, intent=intent, pod=None, processes=ProcFs(), holders=holders
        )
        return intent, made

    def tools(self, **more: Any) -> ActuatorContext:
        """Return the services that carry a swap out, with ``more`` fields."""
        return ActuatorContext(runtime=self.cri, events=self.watch, files=HostFiles(symlink_dir=None), **more)
