"""Provide a dev node whose kubelet uses a CRI proxy, for scenarios that place its relists."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.devnode import leftovers, node
from hack.devnode.layout import NodeLayout
from hack.devnode.observer import Observer
from tests import machine
from tests.devnode.looks import NO_COLLECTION, Looks


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def dev_and_looks() -> AsyncIterator[tuple[node.DevNode, Looks]]:
    """The node. A scenario reverts its own changes (faults, pods)."""
    machine.must_run_containers()
    await asyncio.to_thread(node.setup)
    where = NodeLayout.named(f"placed-{os.getpid()}")
    async with Looks.on(where) as looks, node.DevNode(where, options=_options(looks)) as dev:
        yield dev, looks
    assert leftovers.find(where) == []
    where.root.with_name(f".{where.root.name}.lock").unlink(missing_ok=True)


def _options(looks: Looks) -> node.Options:
    return node.Options(kubelet_config=looks.kubelet_config, kubelet_flags=NO_COLLECTION)


@pytest.fixture
def dev(dev_and_looks: tuple[node.DevNode, Looks]) -> node.DevNode:
    return dev_and_looks[0]


@pytest_asyncio.fixture(loop_scope="package")
async def looks(dev_and_looks: tuple[node.DevNode, Looks]) -> AsyncIterator[Looks]:
    """Kubelet's relists; they are free before and after the test."""
    yield dev_and_looks[1]
    await dev_and_looks[1].release()


@pytest_asyncio.fixture(loop_scope="package")
async def observer(dev: node.DevNode) -> AsyncIterator[Observer]:
    """Observe the node from outside the agent."""
    async with Observer.of(dev.layout) as made:
        yield made
