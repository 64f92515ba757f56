"""Provide a real CRI-O, shared by all tests. Without one (`make crio` builds it) they are skipped."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from hack.devnode import crio, leftovers, packages
from hack.devnode.layout import NodeLayout
from kubemend.agent import ports
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary, PodUid
from kubemend.agent.restart import intents
from tests import machine
from tests.devnode.pods import Pods, RunningPod
from tests.environments.swaps import Swaps

_NUMBERS = itertools.count()


class Swapper:
    """Swap the container ``main`` of pods, as the agent does without a hold."""

    def __init__(self, swaps: Swaps) -> None:
        self.cri = swaps.cri
        self._swaps = swaps

    async def swap(
        self,
        running: RunningPod,
        *,
        seen: Sequence[ContainerSummary] | None = None,
        kubelet_creates: Callable[[ContainerRef], bool] = lambda _: False,
        holders: ports.Holders | None = None,
    ) -> Outcome:
        """Return the outcome. ``seen`` is the listing on which the swap is based."""
        listed = seen or await self.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
        old = min(listed, key=lambda view: view.attempt)
        order = intents.SwapOrder.CREATE_FIRST
        intent, successor_spec = await self._swaps.prepared(running, order=order, old=old, holders=holders)
        assert successor_spec.is_rebuilt
        actuator = SwapActuator(self._swaps.tools(kubelet_creates=kubelet_creates))
        return await actuator.carry_out(intent, successor_spec=successor_spec, seen=seen)


@pytest.fixture(scope="session")
def runtime() -> Iterator[crio.Crio]:
    """The shared CRI-O. The contract suite imports this fixture, and has one of its own."""
    if reason := crio.missing():
        pytest.skip(reason)
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
    async with Swaps.on(str(runtime.node.containerd_socket)) as swaps:
        yield Swapper(swaps)
