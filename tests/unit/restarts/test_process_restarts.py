"""Restarts of a program by the launcher in its container, from the decision to the closed journal."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart import admission, counts, intents
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.recovery import Background, Recovery
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.restarts.verifier import Timeouts
from tests.environments import node
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv

CHANGES = {"StopContainer", "CreateContainer", "StartContainer", "RemoveContainer"}


@pytest.fixture
def launched(env: RestartEnv) -> RestartEnv:
    """The trainer's command is the launcher."""
    _launch(env)
    return env


def _launch(env: RestartEnv) -> None:
    config = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]].config
    config.command[:] = ["python", "/launcher/kubemend_run.py", "--", "python", "train.py"]


async def test_a_fault_of_the_program_restarts_it_in_its_container(launched: RestartEnv) -> None:
    condition = await launched.ask()
    assert (condition.status, condition.reason) == (ConditionStatus.TRUE, "Restarted")
    assert condition.message.startswith("trainer restart 1 by process in ")
    assert condition.message.endswith("; verified")
    assert not CHANGES & set(launched.pod.cri_env.server.called())
    assert await launched.store.unfinished() == ()
    (begun,) = await launched.store.begun_since(0.0)
    assert begun.containers == {"trainer"}
    assert launched.heartbeats.begun_again == [launched.pod.old["trainer"]]


async def test_the_same_fault_soon_after_makes_a_new_container(launched: RestartEnv) -> None:
    await launched.ask()
    condition = await launched.ask()
    assert condition.message.startswith("trainer restart 1 by swap in ")
    assert launched.launchers.calls.count("stop") == 1


async def test_swap_by_name_is_not_replaced(launched: RestartEnv) -> None:
    condition = await launched.ask(strategy="swap")
    assert " by swap " in condition.message
    assert set(launched.launchers.calls) == {"status"}


async def test_process_by_name_is_refused_without_a_launcher(env: RestartEnv) -> None:
    condition = await env.ask(strategy="process")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "NoLauncher")
    assert env.launchers.calls == []


async def test_a_silent_launcher_is_swapped(launched: RestartEnv) -> None:
    launched.launchers.state = LauncherUnavailable("it did not answer")
    condition = await launched.ask()
    assert " by swap " in condition.message
    assert launched.launchers.calls == ["status"]


@pytest.mark.parametrize(
    "left", [(7,), LauncherUnavailable("its processes cannot be read")], ids=["lies", "unreadable"]
)
async def test_a_launcher_that_fails_on_the_way_is_swapped(launched: RestartEnv, left: Any) -> None:
    launched.launchers.left = left
    with capture_logs() as logged:
        condition = await launched.ask()
    assert " by swap " in condition.message
    assert condition.message.endswith("; verified")
    details = [entry["detail"] for entry in logged if entry["event"] == "restart.decided"]
    assert details[0] == ""
    assert details[1].startswith("not process: ")
    assert await launched.store.unfinished() == ()
    assert len(await launched.store.begun_since(0.0)) == 1


async def test_a_launcher_that_fails_and_the_swap_after_it_spend_one_restart(launched: RestartEnv) -> None:
    launched.launchers.left = (7,)
    async with asyncio.timeout(30):
        condition = await launched.ask(**{"max-restarts": "1"})
    assert (condition.status, condition.message.startswith("trainer restart")) == (ConditionStatus.TRUE, True)
    await _next_is_on_hold(launched)


async def test_a_launcher_that_fails_spends_a_restart_even_if_none_follows(launched: RestartEnv) -> None:
    """It may have ended the program."""
    launched.launchers.left = (7,)
    condition = await launched.ask(**{"max-restarts": "1", "strategy": "process"})
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, Reason.NO_LAUNCHER.value)
    await _next_is_on_hold(launched)


async def _next_is_on_hold(env: RestartEnv) -> None:
    """Wait until another fault is on hold, because the budget is spent."""
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW + 1)
    request = Request(target=TARGET, cause=lambda: cause, devices=frozenset())
    waiting = asyncio.create_task(env.restarts.submit(request))
    async with asyncio.timeout(30):
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.BUDGET_SPENT.value)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_container_that_ends_on_the_way_is_swapped(launched: RestartEnv) -> None:
    def ends(call: str) -> None:
        if call == "stop":
            launched.pod.cri_env.server.runtime.exit(launched.pod.old["trainer"], exit_code=137)
            launched.launchers.state, launched.launchers.obeys = LauncherUnavailable("it has ended"), False

    launched.launchers.before = ends
    condition = await launched.ask()
    assert condition.status is ConditionStatus.TRUE
    assert [view.id for view in await launched.pod.cri_env.running()] != [launched.pod.old["trainer"]]


async def test_a_fault_that_the_launcher_handles_itself_waits_for_that(launched: RestartEnv) -> None:
    launched.launchers.state = Launcher(State.RESTARTING, program=1)

    def restarted(call: str) -> None:
        if launched.launchers.calls == ["status"] * 2:
            launched.launchers.state = Launcher(State.RUNNING, program=2, age=0.0)

    launched.launchers.before = restarted
    condition = await replace(launched, restarts=one_second_later(launched)).ask()
    assert condition.reason == "AlreadyReplaced"
    assert set(launched.launchers.calls) == {"status"}


async def test_a_fault_after_an_interrupt_that_the_program_survives_makes_a_new_container(launched: RestartEnv) -> None:
    launched.launchers.state = Launcher(State.ENDING, program=1)
    condition = await launched.ask()
    assert condition.message.startswith("trainer restart 1 by swap in ")


async def test_an_interrupt_between_decision_and_order_loses_no_restart(launched: RestartEnv) -> None:
    """The launcher obeys no order, but its container need not end."""

    def interrupted(_: str) -> None:
        if launched.launchers.calls == ["status"] * 2:
            launched.launchers.state = Launcher(State.ENDING, program=1)

    launched.launchers.before = interrupted
    condition = await launched.ask()
    assert condition.message.startswith("trainer restart 1 by swap in ")
    assert condition.message.endswith("; verified")
    assert await launched.store.unfinished() == ()
    assert len(await launched.store.begun_since(0.0)) == 1


async def test_a_container_that_kubelet_may_be_stopping_waits_until_its_launcher_runs_on(
    cri_env: CriEnv, tmp_path: Path
) -> None:
    """Kubelet marks a pod that it evicts only when its containers have ended."""
    asked = asyncio.Event()

    async def stopping(container: ContainerId, *_: object) -> str:
        assert container == cri_env.old
        asked.set()
        return "the runtime stops the container"

    async with restarts_on(cri_env, tmp_path, tools={"stopping": stopping}) as env:
        _launch(env)
        env.launchers.state = Launcher(State.ENDING, program=1)
        waiting = asyncio.create_task(env.ask())
        async with asyncio.timeout(30):
            await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.CONTAINER_STOPS.value)
            assert asked.is_set()
            assert not CHANGES & set(env.pod.cri_env.server.called())
            env.launchers.state = Launcher(State.RUNNING, program=1)
            condition = await waiting
    assert condition.message.startswith("trainer restart 1 by process in ")


def one_second_later(env: RestartEnv) -> RestartScheduler:
    """Return a scheduler by whose clock the fault was a second ago."""
    return RestartScheduler(
        dependencies=env.dependencies, store=env.store, metrics=node.metrics(), now=lambda: NOW + 1.0
    )


def intent(env: RestartEnv) -> intents.ProcessIntent:
    return intents.ProcessIntent(
        "r1",
        TARGET,
        env.pod.cri_env.sandbox_id,
        env.pod.old["trainer"],
        program=1,
        reason="Xid31",
        created_at=NOW,
    )


@pytest.mark.parametrize(
    ("state", "age", "after"),
    [
        pytest.param(Launcher(State.RUNNING, 1), 0.0, 2, id="nothing-done"),
        pytest.param(Launcher(State.HELD, 1, "r1"), 0.0, 2, id="held"),
        pytest.param(Launcher(State.RUNNING, 2, "r1"), 0.0, 2, id="done"),
        pytest.param(Launcher(State.RUNNING, 1), 600.0, 1, id="too-old"),
        pytest.param(Launcher(State.HELD, 1, "r1"), 600.0, 2, id="held-and-too-old"),
    ],
)
async def test_the_next_agent_ends_open_restarts(launched: RestartEnv, state: Launcher, age: float, after: int) -> None:
    await launched.store.begin(intent(launched))
    launched.launchers.state = state
    timeouts = Timeouts(kubelet=0.1, pod=0.1)
    recovery = Recovery(
        dependencies=launched.dependencies, store=launched.store, now=lambda: NOW + age, timeouts=timeouts
    )
    assert await recovery.run() == 1
    assert isinstance(launched.launchers.state, Launcher)
    assert (launched.launchers.state.state, launched.launchers.state.program) == (State.RUNNING, after)
    assert await launched.store.unfinished() == ()
    assert not CHANGES & set(launched.pod.cri_env.server.called())


async def test_a_launcher_that_takes_its_time_does_not_delay_another_ones_replay(launched: RestartEnv) -> None:
    both = asyncio.Barrier(2)
    ask = launched.launchers.status

    async def together(container: ContainerStatus) -> Launcher | LauncherUnavailable:
        await both.wait()
        return await ask(container)

    launched.launchers.status = together  # type: ignore[method-assign]
    await launched.store.begin(intent(launched))
    await launched.store.begin(replace(intent(launched), id="r2"))
    timeouts = Timeouts(kubelet=0.1, pod=0.1)
    recovery = Recovery(dependencies=launched.dependencies, store=launched.store, now=lambda: NOW, timeouts=timeouts)
    assert await recovery.run() == 2
    assert await launched.store.unfinished() == ()


async def test_the_next_agent_closes_the_restart_of_a_container_that_has_ended(launched: RestartEnv) -> None:
    await launched.store.begin(intent(launched))
    launched.pod.cri_env.server.runtime.exit(launched.pod.old["trainer"], exit_code=137)
    assert await Recovery(dependencies=launched.dependencies, store=launched.store, now=lambda: NOW).run() == 1
    assert await launched.store.unfinished() == ()
    assert launched.launchers.calls == []


OPTED_IN = {"kubemend.io/restart": "InPlace"}
FAULT = counts.Begun(POD.uid, frozenset({"trainer"}), at=NOW - 1.0, fault_at=NOW - 2.0, device="GPU-1")


async def opt_in(env: RestartEnv, **annotations: str) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations=OPTED_IN | annotations))


async def next_agent(env: RestartEnv, *, now: float = NOW, opened: int = 1) -> None:
    """Start an agent, which replays the journal and does all that follows from that."""
    scheduler = RestartScheduler(
        dependencies=env.dependencies, store=env.store, metrics=node.metrics(), now=lambda: now
    )
    async with asyncio.timeout(60), env.kubelet(), asyncio.TaskGroup() as tasks:
        recovery = Recovery(
            dependencies=env.dependencies,
            store=env.store,
            now=lambda: now,
            timeouts=Timeouts(kubelet=10.0, pod=10.0),
            background=Background(tasks, scheduler),
        )
        assert await recovery.run() == opened
    await scheduler._budgets.load()
    assert len(scheduler._budgets.all()) == len(await env.store.begun_since(0.0))


async def is_restarted_once(env: RestartEnv) -> bool:
    """Return whether there is one new container, no open intent, and one restart in the journal."""
    started = [call for call in env.pod.cri_env.server.called() if call == "StartContainer"]
    (begun,) = await env.store.begun_since(0.0)
    views = [view for view in await env.pod.containers() if view.ref == TARGET]
    current = max(views, key=lambda view: view.attempt)
    is_new = (current.state, current.attempt) == (ContainerState.RUNNING, 1)
    return is_new and len(started) == 1 and begun.containers == {"trainer"} and await env.store.unfinished() == ()


@pytest.mark.parametrize("grace", [0.0, 5.0])
async def test_the_next_agent_swaps_what_the_launcher_fails_to_restart(launched: RestartEnv, grace: float) -> None:
    await opt_in(launched)
    await launched.store.begin(replace(intent(launched), grace_seconds=grace), counted=FAULT)
    launched.launchers.left = (7,)
    await next_agent(launched)
    assert " by swap " in launched.said.said[POD, conditions.IN_PLACE_RESTART].message
    assert await is_restarted_once(launched)
    (begun,) = await launched.store.begun_since(0.0)
    assert (begun.fault_at, begun.device) == (FAULT.fault_at, FAULT.device)


@pytest.mark.parametrize(
    ("code", "counted", "age"),
    [
        pytest.param("Requested", FAULT, 0.0, id="for-a-person"),
        pytest.param("Xid31", replace(FAULT, containers=frozenset({"other"})), 0.0, id="not-counted"),
        pytest.param("Xid31", FAULT, 600.0, id="too-old"),
    ],
)
async def test_the_next_agent_reports_what_it_does_not_take_over(
    launched: RestartEnv, code: str, counted: counts.Begun, age: float
) -> None:
    await opt_in(launched)
    await launched.store.begin(replace(intent(launched), reason=code), counted=counted)
    launched.pod.cri_env.server.runtime.exit(launched.pod.old["trainer"], exit_code=137)
    await next_agent(launched, now=NOW + age)
    assert launched.said.said[POD, conditions.IN_PLACE_RESTART].reason == "SteppedDown"
    assert not CHANGES & set(launched.pod.cri_env.server.called())
    assert await launched.store.unfinished() == ()


async def test_the_next_agent_leaves_a_container_alone_that_kubelet_has_started_in_place_of_the_faulty_one(
    launched: RestartEnv,
) -> None:
    """By its time alone it seems to have had the fault: the node's clock was set back before kubelet started it."""
    await opt_in(launched)
    await launched.store.begin(intent(launched), counted=FAULT)
    launched.pod.cri_env.server.runtime.exit(launched.pod.old["trainer"], exit_code=137)
    await launched.pod.kubelet_starts("trainer", attempt=1)
    launched.pod.cri_env.server.calls.clear()
    await next_agent(launched)
    assert launched.said.said[POD, conditions.IN_PLACE_RESTART].reason == Reason.ALREADY_REPLACED.value
    assert not CHANGES & set(launched.pod.cri_env.server.called())
    assert await launched.store.unfinished() == ()


async def test_the_next_agent_refuses_what_no_strategy_can_restart(launched: RestartEnv) -> None:
    await opt_in(launched, **{"kubemend.io/strategy": "process"})
    await launched.store.begin(intent(launched), counted=FAULT)
    launched.launchers.left = (7,)
    await next_agent(launched)
    assert launched.said.said[POD, conditions.IN_PLACE_RESTART].reason == Reason.NO_LAUNCHER.value
    assert not CHANGES & set(launched.pod.cri_env.server.called())
    assert await launched.store.unfinished() == ()
    assert len(await launched.store.begun_since(0.0)) == 1, "the launcher may have ended the program"


@pytest.mark.parametrize("replays", [False, True], ids=["at-the-fault", "at-a-replay"])
@pytest.mark.parametrize("written", [False, True], ids=["before-the-swap-is-written", "after-it"])
async def test_an_agent_that_dies_while_it_steps_down_neither_loses_nor_repeats_the_restart(
    launched: RestartEnv, monkeypatch: pytest.MonkeyPatch, *, replays: bool, written: bool
) -> None:
    await opt_in(launched)
    launched.launchers.left = (7,)
    begin, dies = launched.store.begin, asyncio.Event()

    async def dying(*begun: intents.AnyIntent, **how: Any) -> None:
        if isinstance(begun[0], intents.ProcessIntent):
            await begin(*begun, **how)
            return
        if written:
            await begin(*begun, **how)
        dies.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(launched.store, "begin", dying)
    if replays:
        await launched.store.begin(intent(launched), counted=FAULT)
    dead = asyncio.create_task(next_agent(launched) if replays else launched.ask())
    async with asyncio.timeout(30):
        await dies.wait()
    dead.cancel()
    await asyncio.gather(dead, return_exceptions=True)
    monkeypatch.setattr(launched.store, "begin", begin)
    (left,) = await launched.store.unfinished()
    assert isinstance(left, intents.Intent if written else intents.ProcessIntent)
    await next_agent(launched)
    assert await is_restarted_once(launched)


async def test_the_next_agent_resets_the_pod_whose_successor_would_differ(env: RestartEnv) -> None:
    runtime = env.pod.cri_env.server.runtime
    runtime.behaviour.is_crio, runtime.behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    await opt_in(env)
    await env.store.begin(_not_alike(env), counted=FAULT)
    await next_agent(env)
    assert " by reset " in env.said.said[POD, conditions.IN_PLACE_RESTART].message
    assert await env.store.unfinished() == ()
    assert len(await env.store.begun_since(0.0)) == 1


async def test_the_next_agent_resets_the_pod_once_if_several_successors_would_differ(env: RestartEnv) -> None:
    runtime = env.pod.cri_env.server.runtime
    runtime.behaviour.is_crio, runtime.behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    await opt_in(env, **{"kubemend.io/containers": "trainer,logger"})
    counted = replace(FAULT, containers=frozenset({"trainer", "logger"}))
    other = replace(TARGET, name="logger")
    await env.store.begin(
        _not_alike(env),
        replace(_not_alike(env), id="r2", target=other, old=env.pod.old["logger"]),
        counted=counted,
    )
    await next_agent(env, opened=2)
    assert " by reset " in env.said.said[POD, conditions.IN_PLACE_RESTART].message
    assert {view.attempt for view in await env.pod.containers()} == {1}
    assert await env.store.unfinished() == ()
    (begun,) = await env.store.begun_since(0.0)
    assert (begun.fault_at, begun.device) == (FAULT.fault_at, FAULT.device)


async def test_a_successor_that_would_differ_does_not_count_if_the_next_agent_has_no_other_strategy(
    env: RestartEnv,
) -> None:
    runtime = env.pod.cri_env.server.runtime
    runtime.behaviour.is_crio, runtime.behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    await opt_in(env, **{"kubemend.io/strategy": "swap"})
    await env.store.begin(_not_alike(env), counted=FAULT)
    await next_agent(env)
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == Reason.RUNTIME_HIDES_CONFIG.value
    assert await env.store.unfinished() == ()
    assert await env.store.begun_since(0.0) == ()


def _not_alike(env: RestartEnv) -> intents.Intent:
    return env.pod.cri_env.intent(order=intents.SwapOrder.CREATE_FIRST, created_at=NOW)
