"""Calls to launchers never fail, and none blocks the agent."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.launcher.client import LauncherClient
from kubemend.agent.clients.launcher.exchange import LauncherAddress, NoAnswerError
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart.process import FOLLOW_SECONDS, Launcher, LauncherUnavailable, State
from kubemend.common.side_process import ProcessEndedError
from tests.unit.restart import builders

CONTAINER = ContainerStatus(
    id=ContainerId("c1"),
    ref=builders.TARGET,
    attempt=0,
    state=ContainerState.RUNNING,
    created_at=1,
    started_at=1,
    finished_at=0,
    exit_code=0,
    reason="",
    message="",
    log_path="",
    annotations={},
    pid=4242,
    runtime_env=("KUBEMEND_CACHE=/cache",),
)
HELD = Launcher(State.HELD, program=1, spare=7)


@dataclass
class Calls:
    """Answers each call with ``result``, or raises it; ``made`` are the calls."""

    result: Any
    made: list[tuple[Any, str, float]]

    async def call(self, work: Callable[[], Any], *, owner: str, timeout: float) -> Any:
        self.made.append((work, owner, timeout))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def close(self) -> None:
        return


@dataclass
class Processes:
    """A container's processes, or the error of reading them."""

    error: OSError | None = None
    root: Path = Path("/nowhere")

    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        if self.error is not None:
            raise self.error
        return frozenset({pid})


def client(result: Any, *, error: OSError | None = None) -> tuple[LauncherClient, Calls]:
    calls = Calls(result, [])
    return LauncherClient(calls=calls, processes=Processes(error)), calls


async def test_the_launcher_is_asked_in_another_process_with_a_deadline() -> None:
    launchers, calls = client(HELD)
    assert await launchers.status(CONTAINER) == HELD
    ((work, owner, timeout),) = calls.made
    assert work.args[0] == LauncherAddress(4242, CONTAINER.id, "/cache", Path("/nowhere"))
    assert owner == "c1"
    assert timeout > work.keywords["timeout"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoAnswerError("it is gone"), "it is gone"),
        (TimeoutError(), "the container's file system did not answer within 2.5 s"),
        (ProcessEndedError("too many"), "the launcher could not be asked: too many"),
    ],
)
async def test_errors_are_reasons(error: Exception, reason: str) -> None:
    launchers, _ = client(error)
    assert await launchers.status(CONTAINER) == LauncherUnavailable(reason)


async def test_age_of_a_program_is_that_of_now_not_of_the_answer() -> None:
    """By it a fault of the program counts as older than the program, or not. The agent may be busy in between."""
    launchers, _ = client(replace(HELD, age=1.0, answered=time.monotonic() - 5.0))
    found = await launchers.status(CONTAINER)
    assert isinstance(found, Launcher)
    assert 6.0 <= found.age < 36.0


async def test_a_container_without_a_process_has_no_launcher() -> None:
    launchers, calls = client(HELD)
    ended = replace(CONTAINER, pid=None)
    assert isinstance(await launchers.status(ended), LauncherUnavailable)
    assert isinstance(await launchers.remains(ended, HELD), LauncherUnavailable)
    assert calls.made == []


async def test_processes_that_cannot_be_read_are_not_taken_for_dead() -> None:
    launchers, _ = client(HELD, error=PermissionError("not permitted"))
    found = await launchers.remains(CONTAINER, HELD)
    assert found == LauncherUnavailable("the container's processes cannot be read: not permitted")


async def test_processes_that_have_ended_are_dead() -> None:
    launchers, _ = client(HELD)
    assert await launchers.remains(CONTAINER, HELD) == ()


async def test_a_launcher_is_followed_during_other_calls_and_longer() -> None:
    launchers, calls = client(HELD)
    assert await launchers.follow(CONTAINER, known=HELD, hold=60.0) == HELD
    await launchers.decide(CONTAINER, 1, ends=True)
    (_, follower, longest), (_, other, _) = calls.made
    assert follower != other == "c1"
    assert longest > FOLLOW_SECONDS
    assert not calls.made[0][0].keywords["passing"](replace(HELD, state=State.FAILED))
    assert calls.made[0][0].keywords["passing"](replace(HELD, age=9.0))
