"""The floor under all tests: no test may leave tasks or processes behind (warnings are errors in pyproject.toml)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator

import hypothesis
import pytest
import structlog

from hack.devnode import processes

# Python's own helper of multiprocessing: started once, it lives as long as the program by design.
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"
_TASK_SECONDS = 1.0  # for a task that is just ending

# How long an example takes says something about the machine, and nothing about the code.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

_of_wider_fixtures: set[processes.ProcessId] = set()


class _WiderFixtures:
    """Remembers the children of fixtures wider than one test: they may start in the middle of the first that asks."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Compare the children before and after the set-up of each of them."""
        if fixturedef.scope == "function":
            return (yield)
        before = _children()
        try:
            return (yield)
        finally:
            _of_wider_fixtures.update(_children() - before)


def pytest_configure(config: pytest.Config) -> None:
    """Register the hook as a plugin: a conftest's own hooks are not asked about the session's fixtures.

    A shell that starts the tests in the background has them ignore SIGINT, and so would each program they start.
    """
    config.pluginmanager.register(_WiderFixtures())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """A command run in this process sets up logging for itself, not for the tests after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_no_processes() -> Iterator[None]:
    """Fail the session when a child outlives the session's fixtures: being the first, this one ends last."""
    before = _children()
    yield
    _fail_on(_children() - before, what="the session")


@pytest.fixture(autouse=True)
def _leaves_no_processes(_session_leaves_no_processes: None) -> Iterator[None]:
    """Fail a test that leaves a child process running, unless a wider fixture has started it."""
    before = _children()
    yield
    _fail_on(_children() - before - _of_wider_fixtures, what="the test")


@pytest.fixture(autouse=True)
async def _leaves_no_tasks() -> AsyncIterator[None]:
    """Fail a test that leaves asyncio tasks running; pytest-asyncio would cancel them without a word."""
    before = asyncio.all_tasks()
    yield
    leaked = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    if leaked:  # gRPC's server ends its tasks a few turns of the loop after the call that they served
        _, leaked = await asyncio.wait(leaked, timeout=_TASK_SECONDS)
    if leaked:
        pytest.fail(f"the test left tasks running: {sorted(task.get_name() for task in leaked)}")


def _children() -> frozenset[processes.ProcessId]:
    return frozenset(
        child
        for child in processes.children_of(os.getpid())
        if not any(_RESOURCE_TRACKER in part for part in processes.command_line(child.pid))
    )


def _fail_on(leaked: frozenset[processes.ProcessId], *, what: str) -> None:
    """Fail with the leaked children's command lines, and end them: they are ours, and nobody else will."""
    lines = [f"{child.pid} {' '.join(processes.command_line(child.pid))}" for child in leaked]
    for child in leaked:
        child.signal(signal.SIGKILL)
    if lines:
        pytest.fail(f"{what} left processes running: {lines}")
