"""Restarts of a program by its launcher, against launchers that obey, lie, fall silent or end at any step."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.actuator import process
from kubemend.agent.actuator.process import ProcessActuator, Timeouts
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, PodRef, SandboxId
from kubemend.agent.restart import intents
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.agent.restart.steps import Resolution
from tests.environments.runtime import TARGET, CriEnv
from tests.fakes.launchers import Launchers

IMPATIENT = Timeouts(stop=0.2, start=0.2, silence=0.1)


def intent(cri_env: CriEnv, **changes: Any) -> intents.ProcessIntent:
    defaults: dict[str, Any] = {"program": 1, "reason": "Xid31", "created_at": 1000.0}
    return intents.ProcessIntent("r1", TARGET, cri_env.sandbox_id, cri_env.old, **defaults | changes)


async def carried_out(
    cri_env: CriEnv,
    launchers: Launchers,
    *,
    resolution: Resolution = Resolution.FINISH,
    timeouts: Timeouts | None = None,
) -> Outcome:
    tools = replace(cri_env.tools(), launchers=launchers)
    return await ProcessActuator(tools, timeouts=timeouts).carry_out(intent(cri_env), resolution=resolution)


async def test_kills_holds_checks_and_releases_and_touches_no_container(cri_env: CriEnv) -> None:
    launchers = Launchers()
    outcome = await carried_out(cri_env, launchers)
    assert (outcome.result, outcome.current) == (Result.RESTARTED, {"trainer": cri_env.old})
    assert launchers.calls == ["status", "stop", "remains", "remains", "release"]
    assert set(outcome.phases) == {"stop", "device", "start"}
    assert not {"StopContainer", "CreateContainer", "StartContainer", "RemoveContainer"} & set(cri_env.server.called())


@pytest.mark.parametrize(
    ("launchers", "detail"),
    [
        (Launchers(LauncherUnavailable("it did not answer")), "it did not answer"),
        (Launchers(left=(7,)), "the launcher reports that the program has ended, but processes of it live"),
        (Launchers(left=LauncherUnavailable("unreadable")), "unreadable"),
        (
            Launchers(Launcher(State.RUNNING, 1, "r1", error="not permitted")),
            "the launcher has refused: not permitted",
        ),
        (Launchers(obeys=False), "the launcher remains in state running"),
        (Launchers(Launcher(State.STOPPING, 1, "r1"), obeys=False), "the launcher remains in state stopping"),
        (Launchers(Launcher(State.HELD, 1, "r1"), obeys=False), "the launcher remains in state held"),
        (Launchers(Launcher(State.RESTARTING, 1), obeys=False), "the launcher remains in state restarting"),
        (Launchers(Launcher(State.ENDING, 1)), "the launcher has been asked to stop, and obeys no order"),
    ],
    ids=[
        "silent",
        "lies",
        "unreadable",
        "refuses",
        "does-nothing",
        "never-dead",
        "never-starts",
        "always-about-to",
        "was-interrupted",
    ],
)
async def test_steps_down_for_a_launcher_that_does_not_restart_its_program(
    cri_env: CriEnv, launchers: Launchers, detail: str
) -> None:
    outcome = await carried_out(cri_env, launchers, timeouts=IMPATIENT)
    assert (outcome.result, outcome.detail) == (Result.STEPPED_DOWN, detail)


@pytest.mark.parametrize("call", ["stop", "release"])
async def test_launcher_that_answers_an_order_and_ignores_it_is_ordered_again_at_intervals(
    cri_env: CriEnv, call: str
) -> None:
    """A program in its place could keep the agent busy for the whole grace period."""
    state = Launcher(State.RUNNING, 1) if call == "stop" else Launcher(State.HELD, 1, "r1")
    launchers = Launchers(state, obeys=False)
    await carried_out(cri_env, launchers, timeouts=IMPATIENT)
    assert 2 <= launchers.calls.count(call) <= 2 + IMPATIENT.stop / process._LEAST_WAIT


@pytest.mark.parametrize("call", ["status", "stop", "remains", "release"])
async def test_steps_down_at_once_when_the_container_ends_at_any_step(cri_env: CriEnv, call: str) -> None:
    launchers = Launchers()

    def ends(name: str) -> None:
        if name == call:
            cri_env.server.runtime.exit(cri_env.old, exit_code=137)
            launchers.state = launchers.left = LauncherUnavailable("the container's main process has ended")
            launchers.obeys = False

    launchers.before = ends
    async with asyncio.timeout(20.0):
        outcome = await carried_out(cri_env, launchers, timeouts=Timeouts(silence=600.0))
    assert (outcome.result, outcome.detail) == (Result.STEPPED_DOWN, "the container's main process has ended")


async def test_a_launcher_that_is_silent_for_a_moment_is_asked_again(cri_env: CriEnv) -> None:
    launchers, state = Launchers(), Launcher(State.RUNNING, 1)

    def late(_: str) -> None:
        launchers.state = LauncherUnavailable("late") if len(launchers.calls) < 3 else state
        launchers.before = late if len(launchers.calls) < 3 else lambda _: None

    launchers.before = late
    outcome = await carried_out(cri_env, launchers, timeouts=Timeouts(silence=600.0))
    assert outcome.result is Result.RESTARTED


@pytest.mark.parametrize("call", ["status", "stop", "remains", "release"])
@pytest.mark.parametrize("before", [True, False], ids=["before-it", "after-it"])
@pytest.mark.parametrize("resolution", Resolution)
async def test_an_agent_that_dies_at_any_step_is_followed_by_one_that_ends_with_one_program(
    cri_env: CriEnv, call: str, before: bool, resolution: Resolution
) -> None:
    launchers = Launchers()

    def dies(name: str) -> None:
        if call == name and before:
            raise _DiedError
        if launchers.calls[-2:-1] == [call] and not before:
            raise _DiedError

    launchers.before = dies
    with pytest.raises(_DiedError) if call != "release" or before else _nothing():
        await carried_out(cri_env, launchers)
    killed = launchers.calls.count("stop")
    launchers.before = lambda _: None
    outcome = await carried_out(cri_env, launchers, resolution=resolution)
    state = launchers.state
    assert isinstance(state, Launcher)
    undone = resolution is Resolution.UNDO and call in ("status", "stop") and (before or call == "status")
    assert outcome.result is (Result.UNDONE if undone else Result.RESTARTED)
    assert (state.state, state.program) == (State.RUNNING, 1 if undone else 2)
    assert killed <= 1


class _DiedError(Exception):
    """The agent has been killed."""


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


async def test_a_program_that_the_launcher_has_restarted_itself_is_left_alone(cri_env: CriEnv) -> None:
    launchers = Launchers(Launcher(State.RUNNING, program=2))
    outcome = await carried_out(cri_env, launchers)
    assert (outcome.result, outcome.detail) == (Result.RESTARTED, "the launcher had restarted the program by itself")
    assert launchers.calls == ["status"]


async def test_nothing_is_started_in_a_pod_that_ends(cri_env: CriEnv) -> None:
    launchers = Launchers(Launcher(State.HELD, 1, "r1"))
    tools = replace(cri_env.tools(), launchers=launchers, ending=lambda *_: "it is deleted")
    outcome = await ProcessActuator(tools).carry_out(intent(cri_env))
    assert (outcome.result, outcome.detail) == (Result.UNDONE, "the pod is ending: it is deleted")
    assert "release" not in launchers.calls


async def test_a_container_that_is_being_stopped_is_left_to_kubelet(cri_env: CriEnv) -> None:
    async def stopping(container: ContainerId, pod: PodRef, sandbox: SandboxId) -> str:
        assert (container, pod, sandbox) == (cri_env.old, TARGET.pod, cri_env.sandbox_id)
        return "the runtime stops the container"

    tools = replace(cri_env.tools(), launchers=Launchers(Launcher(State.ENDING, 1)), stopping=stopping)
    outcome = await ProcessActuator(tools).carry_out(intent(cri_env))
    assert outcome.result is Result.UNDONE
    assert outcome.detail == "the launcher has been asked to stop, and obeys no order: the runtime stops the container"


async def test_a_runtime_that_is_away_leaves_it_unfinished(cri_env: CriEnv) -> None:
    await cri_env.server.stop()
    outcome = await carried_out(cri_env, Launchers())
    assert outcome.result is Result.UNFINISHED


async def test_steps_down_for_a_container_that_has_been_removed(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=137)
    await cri_env.cri.remove_container(cri_env.old)
    outcome = await carried_out(cri_env, Launchers())
    assert (outcome.result, outcome.detail) == (Result.STEPPED_DOWN, "the container has ended and been removed")
