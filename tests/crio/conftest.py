"""Provide a real CRI-O, shared by all tests. Without one (`make crio` builds it) they are skipped."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from hack.devnode import crio, leftovers, packages
from hack.devnode.layout import NodeLayout
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.outcomes import Outcome
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary, PodRef, PodUid
from kubemend.agent.restart import intents
from kubemend.agent.restarts import runtime_state
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.processes import ProcFs
from tests import machine
from tests.devnode.pods import Pods, RunningPod

_NUMBERS = itertools.count()


class Swapper:
    """Swap the container ``main`` of pods, as the agent does without a hold."""

    def __init__(self, cri: CriClient, watch: ContainerWatch) -> None:
        self.cri = cri
        self._watch = watch

    async def swap(
        self,
        running: RunningPod,
        *,
        seen: Sequence[ContainerSummary] | None = None,
        kubelet_creates: Callable[[ContainerRef], bool] = lambda _: False,
    ) -> Outcome:
        """Return the outcome. ``seen`` is the listing on which the swap is based."""
        pod = PodRef("default", running.pod.name, PodUid(running.pod.uid))
        target = await runtime_state.find(self.cri, ContainerRef(pod, "main"))
        assert target is not None
        old = min(seen or target.siblings, key=lambda view: view.attempt)
        info = await self.cri.container_status(old.id)
        assert target.facts(now=time.time()).not_cloneable is None
        intent = intents.Intent(
            id=f"swap-{running.pod.name}",
            target=target.view.ref,
            sandbox_id=target.view.sandbox_id,
            old=old.id,
            old_attempt=0,
            order=intents.SwapOrder.CREATE_FIRST,
            reason="Test",
            created_at=time.time(),
        )
        material = await runtime_state.material(self.cri, info, intent=intent, pod=None, processes=ProcFs())
        assert material.original is not None
        tools = ActuatorContext(
            runtime=self.cri,
            events=self._watch,
            files=HostFiles(symlink_dir=None),
            kubelet_creates=kubelet_creates,
        )
        return await SwapActuator(tools).carry_out(intent, material=material, seen=seen)


@pytest.fixture(scope="session")
def runtime() -> Iterator[crio.Crio]:
    """The shared CRI-O. The contract suite imports this fixture, and has one of its own."""
    if why := crio.missing():
        pytest.skip(why)
    machine.must_run_containers()
    name = f"crio-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}-{next(_NUMBERS)}"
    made = crio.Crio(NodeLayout.named(name), packages.ensure_packages())
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())
    assert leftovers.find(made.node) == []
    made.node.root.with_name(f".{made.node.root.name}.lock").unlink(missing_ok=True)


@pytest.fixture
async def pods(runtime: crio.Crio) -> AsyncIterator[Pods]:
    """Create pods in the shared CRI-O; they are removed after the test."""
    async with Pods.on(runtime.node) as made:
        yield made


@pytest.fixture
async def swapper(runtime: crio.Crio) -> AsyncIterator[Swapper]:
    async with CriClient(str(runtime.node.containerd_socket)) as cri:
        watch = ContainerWatch(cri, report=lambda _: None)
        watching = asyncio.create_task(watch.run(), name="watch")
        await watch.until_listed()
        yield Swapper(cri, watch)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
