"""Provide a whole dev node, shared by the scenarios of one worker process."""

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Final

import pytest

from hack.devnode import leftovers, node
from hack.devnode.layout import BASE, NodeLayout
from hack.devnode.observer import Observer
from tests import machine

_LOG_BYTES: Final = 6000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the agents' logs with a failure: they go with their node."""
    report = yield
    if report.failed:
        for log in sorted(BASE.glob(f"*-{os.getpid()}*/agent.log")):
            report.sections.append((str(log), log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")))
    return report


@pytest.fixture(scope="package")
def dev() -> Iterator[node.DevNode]:
    """The node. A scenario reverts its own changes (faults, pods)."""
    machine.must_run_containers()
    node.setup()
    made = node.DevNode(NodeLayout.named(f"scenarios-{os.getpid()}"))
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())
        assert leftovers.find(made.layout) == []
        made.layout.root.with_name(f".{made.layout.root.name}.lock").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def kernel_log_of_its_own(dev: node.DevNode) -> None:
    """An agent reads every line of this boot, also those that another scenario has written."""
    dev.kernel_log.clear()


@pytest.fixture
async def observer(dev: node.DevNode) -> AsyncIterator[Observer]:
    """Observe the node from outside the agent."""
    async with Observer.of(dev.layout) as made:
        yield made
