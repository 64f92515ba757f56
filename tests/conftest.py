"""Check after every test that it leaves no tasks or processes behind (warnings are errors in pyproject.toml)."""

import asyncio
import inspect
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Final

import hypothesis
import pytest
import pytest_asyncio
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from hack.devnode import loopback, processes

pytest_plugins = ["tests.control_plane"]

# Python's own helper of multiprocessing: once started, it lives as long as the program by design.
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"
_TASK_SECONDS = 10.0  # for a task that is just ending; only a test that leaves one waits for so long

_TOGETHER: Final = (
    "tests/contract/api/components/",
    "tests/contract/jobs/",
    "tests/contract/kubelet/",
    "tests/crio/",
    "tests/scenarios/endings/",
    "tests/scenarios/gang/",
    "tests/scenarios/matrix/shutdown/",
    "tests/scenarios/placed/",
)
"""Packages that start a cluster for all their tests: one worker process runs all of each, so it starts once."""

_FIRST: Final = ("tests/scenarios/", "tests/e2e/")
"""They take longest, and each of their clusters ends with its package. The API server of the other tests stays until
the end once it has started, so it does so after them.
"""

_BACKGROUND_NICENESS: Final = 10

# The duration of an example depends on the machine, not on the code.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

_of_wider_fixtures: set[processes.ProcessId] = set()


class _WiderFixtures:
    """Record the children of fixtures wider than one test: they may start in the middle of the first test that requests
    them.
    """

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


class _FailuresAtOnce:
    """Name each failed test as soon as it has failed: a run takes minutes, and pytest names them at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the test and the reason on a line of their own."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.splitlines()[0] if crash is not None and crash.message else report.when
            self._config.get_terminal_writer().line(f"\n{report.nodeid} failed: {reason}")


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Distribute modules over the worker processes, and some packages as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        packages = [name for name in _TOGETHER if nodeid.startswith(name)]
        return packages[0] if packages else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the first module or package in order; to a background worker, the last."""
        if node.gateway.id in self.config.getoption("background_worker"):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the background workers."""
    text = "this one (gw2) runs at low priority, and from the end of the tests: it uses the time that the others wait"
    parser.addoption("--background-worker", action="append", default=[], metavar="WORKER", help=text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Distribute the tests of ``--dist loadscope``; return None for other ways."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests; those of a package stay in their order."""
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


def pytest_configure(config: pytest.Config) -> None:
    """Register the hook as a plugin: a conftest's own hooks are not called for the session's fixtures.

    A shell that starts the tests in the background has them ignore SIGINT, and so would each program they start.
    """
    config.pluginmanager.register(_WiderFixtures())
    if os.environ.get("PYTEST_XDIST_WORKER") in config.getoption("background_worker"):
        os.setpriority(os.PRIO_PROCESS, 0, _BACKGROUND_NICENESS)
    if not hasattr(config, "workerinput"):  # a worker process of xdist has no terminal of its own
        config.pluginmanager.register(_FailuresAtOnce(config))
    processes.end_on_sigterm()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have SIGTERM end the tests in order, as SIGINT does: asyncio takes that back when it removes a test's handler."""
    processes.end_on_sigterm()


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Iterator[None]:
    """A command that runs in this process configures logging for itself, not for the tests after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def unused_tcp_port() -> int:
    """A port for a server. That of pytest-asyncio may be taken by an outgoing connection of any program before."""
    return loopback.free_port()


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_no_processes() -> Iterator[None]:
    """Fail the session when a child outlives the session's fixtures: this one is the first, so it ends last."""
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
def _leaves_its_priority() -> Iterator[None]:
    """Fail a test that leaves this process ahead of the others: its later tests' clusters would starve theirs."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.fixture(autouse=True)
def _leaves_no_tasks(request: pytest.FixtureRequest) -> None:
    """Fail a test with an event loop that leaves tasks running on it. A loop for each of the others would take time."""
    if pytest_asyncio.is_async_test(request.node) or _has_async_fixture(request.node):
        request.getfixturevalue("_tasks_end")


def _has_async_fixture(item: pytest.Function) -> bool:
    of_name = item._fixtureinfo.name2fixturedefs  # pytest has no public way
    functions = [each.func for name, found in of_name.items() if name != "_tasks_end" for each in found]
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions)


@pytest.fixture
async def _tasks_end() -> AsyncIterator[None]:
    """Fail when tasks run after the test that did not before; pytest-asyncio would cancel them silently."""
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
        for child in processes.children()
        if not any(_RESOURCE_TRACKER in part for part in processes.command_line(child.pid))
    )


def _fail_on(leaked: frozenset[processes.ProcessId], *, what: str) -> None:
    """Fail with the leaked children's command lines, and end them: no other code will."""
    lines = [f"{child.pid} {' '.join(processes.command_line(child.pid))}" for child in leaked]
    for child in leaked:
        child.signal(signal.SIGKILL)
    if lines:
        pytest.fail(f"{what} left processes running: {lines}")
