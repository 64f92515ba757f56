"""Provide a whole dev node, shared by the scenarios of one worker process."""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Final

import pytest

from hack.devnode import node
from hack.devnode.layout import BASE
from hack.devnode.observer import Observer
from tests.scenarios import dev_nodes

_LOGS: Final = ("agent.log", "controller-*.log")
_LOG_BYTES: Final = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the agents' and controllers' logs with a failure: they go with their node."""
    report = yield
    if report.failed:
        nodes = BASE.glob(f"*-{os.getpid()}*")
        for log in sorted(log for each in nodes for name in _LOGS for log in each.glob(name)):
            report.sections.append((str(log), log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")))
    return report


@pytest.fixture(scope="package")
def dev() -> Iterator[node.DevNode]:
    """The node. A scenario reverts its own changes (faults, pods)."""
    with dev_nodes.running("scenarios") as made:
        yield made


@pytest.fixture(autouse=True)
def kernel_log_of_its_own(dev: node.DevNode) -> None:
    """An agent reads every line of this boot, also those that another scenario has written."""
    dev.kernel_log.clear()


@pytest.fixture
async def observer(dev: node.DevNode) -> AsyncIterator[Observer]:
    """Observe the node from outside the agent."""
    async with Observer.of(dev.layout) as made:
        yield made
