"""Members of a round whose program is restarted by the launcher in their container, and those that step down."""

import asyncio
import functools
from typing import Any

import pytest

from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import POD

CHANGES = {"StopContainer", "CreateContainer", "StartContainer", "RemoveContainer"}


@pytest.fixture
async def launched(env: RoundEnv) -> RoundEnv:
    """The trainer's command is the launcher, and the round restarts only the trainer."""
    config = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]].config
    config.command[:] = ["python", "/launcher/kubemend_run.py", "--", "python", "train.py"]
    await env.annotate(restart="InPlace", containers="trainer")
    return env


def state(env: RoundEnv) -> tuple[State, int]:
    found = env.launchers.state
    assert isinstance(found, Launcher)
    return found.state, found.program


async def test_the_program_is_dead_and_held_until_the_release_and_the_container_stays(launched: RoundEnv) -> None:
    reported = launched.order()
    stopped = await reported.next()
    assert (stopped.phase, stopped.unheld_seconds) == (StepPhase.STOPPED, 0.0)
    assert launched.freezer.still() == {launched.pod.old["trainer"]} == launched.rounds.held()
    assert state(launched) == (State.HELD, 1)
    launched.rounds.release("default/gang-1", [POD.uid])
    assert (await reported.next()).phase is StepPhase.RUNNING
    await eventually.true(lambda: state(launched) == (State.RUNNING, 2))
    assert launched.freezer.still() == set()
    assert await launched.newest() == launched.pod.old
    assert not CHANGES & set(launched.pod.cri_env.server.called())
    assert not launched.rounds.expects_end(launched.pod.old["trainer"]), "its next exit is a fault"


async def test_a_second_round_soon_after_makes_a_new_container(launched: RoundEnv) -> None:
    reported = launched.order()
    await reported.next()
    launched.rounds.release("default/gang-1", [POD.uid])
    await reported.next()
    await eventually.true(lambda: not launched.rounds.busy(POD.uid) and state(launched)[0] is State.RUNNING)
    again = launched.order(round="default/gang-2", attempt=2)
    assert (await again.next()).phase is StepPhase.STOPPED
    assert (await launched.newest())["trainer"] != launched.pod.old["trainer"]
    launched.rounds.release("default/gang-2", [POD.uid])
    assert (await again.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize("fails", ["at-once", "on-the-way"])
async def test_a_member_whose_launcher_fails_is_swapped_in_the_same_round(launched: RoundEnv, fails: str) -> None:
    if fails == "at-once":
        launched.launchers.state = LauncherUnavailable("it did not answer")
    else:
        launched.launchers.left = (7,)
    reported = launched.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = (await launched.newest())["trainer"]
    assert newest != launched.pod.old["trainer"]
    assert launched.freezer.still() == {newest}
    launched.rounds.release("default/gang-1", [POD.uid])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_a_member_that_hears_nothing_more_starts_by_itself(launched: RoundEnv) -> None:
    assert (await launched.order().next()).phase is StepPhase.STOPPED
    reported = launched.order(hold_seconds=0.5)
    assert (await reported.step_results.get()).phase is StepPhase.STOPPED
    launched.since_boot += 1000.0
    assert (await reported.next()).phase is StepPhase.SELF_RELEASED
    await eventually.true(lambda: state(launched) == (State.RUNNING, 2))


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "not-frozen-yet"])
async def test_the_next_agent_resumes_held_programs(launched: RoundEnv, frozen: bool) -> None:
    reported = launched.order()
    await reported.next()
    await launched.die()
    if not frozen:
        launched.freezer.frozen.clear()
    await launched.start()
    await launched.stands(StepPhase.STOPPED)
    await eventually.true(lambda: launched.freezer.still() == {launched.pod.old["trainer"]})
    assert state(launched) == (State.HELD, 1)
    launched.rounds.release("default/gang-1", [POD.uid])
    await launched.stands(StepPhase.RUNNING)
    await eventually.true(lambda: state(launched) == (State.RUNNING, 2))


async def test_the_next_agent_stops_a_program_that_the_last_one_has_not_stopped(launched: RoundEnv) -> None:
    """The last agent died between the journal and the order: the program must not be frozen in its place."""
    launched.launchers.before = never
    launched.order()
    await eventually.true(lambda: launched.launchers.calls[-1:] == ["stop"])
    await launched.die()
    launched.launchers.before = lambda _: None
    await launched.start()
    await launched.stands(StepPhase.STOPPED)
    assert state(launched) == (State.HELD, 1)
    launched.rounds.release("default/gang-1", [POD.uid])
    await launched.stands(StepPhase.RUNNING)


@pytest.mark.parametrize("refused", [False, True], ids=["swapped", "no-other-strategy"])
async def test_the_next_agent_swaps_a_member_whose_launcher_fails(launched: RoundEnv, refused: bool) -> None:
    launched.launchers.before = never
    launched.order(strategy="process" if refused else "")
    await eventually.true(lambda: launched.launchers.calls[-1:] == ["stop"])
    await launched.die()
    launched.launchers.before = lambda _: None
    launched.launchers.left = (7,)
    await launched.start()
    if refused:
        await launched.stands(StepPhase.REFUSED)
        assert await launched.newest() == launched.pod.old
    else:
        await launched.stands(StepPhase.STOPPED)
        await eventually.true(launched.restarts.quiet.is_set)
        newest = (await launched.newest())["trainer"]
        assert newest != launched.pod.old["trainer"]
        assert launched.freezer.still() == {newest}
        launched.rounds.release("default/gang-1", [POD.uid])
        await launched.stands(StepPhase.RUNNING)
    await eventually.true(functools.partial(has_closed_all, launched))
    assert len(await launched.store.begun_since(0.0)) == 1


@pytest.mark.parametrize("dies", [False, True], ids=["this-agent", "the-next-agent"])
async def test_a_member_that_is_refused_because_its_successor_would_differ_counts_no_restart(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    await env.annotate(restart="InPlace", containers="trainer")
    begin, has_begun = env.store.begin, asyncio.Event()

    async def dying(*begun: Any, **how: Any) -> None:
        await begin(*begun, **how)
        has_begun.set()
        await asyncio.Event().wait()

    if dies:
        monkeypatch.setattr(env.store, "begin", dying)
        env.order(strategy="swap")
        await has_begun.wait()
        await env.die()
        monkeypatch.setattr(env.store, "begin", begin)
    behaviour = env.pod.cri_env.server.runtime.behaviour
    behaviour.is_crio, behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    if dies:
        await env.start()
    else:
        env.order(strategy="swap")
    await env.stands(StepPhase.REFUSED)
    await eventually.true(functools.partial(has_closed_all, env))
    assert await env.newest() == env.pod.old
    assert await env.store.begun_since(0.0) == ()


async def has_closed_all(env: RoundEnv) -> bool:
    return await env.store.unfinished() == ()


def never(call: str) -> None:
    if call == "stop":
        raise NeverError


class NeverError(BaseException):
    """The agent dies in this call."""
