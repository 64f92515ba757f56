"""A member reports the death of its old containers at once, and what starts after the release is not held."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.model.workloads import ContainerId, ExecHook, RestartRule, RuleAction
from kubemend.agent.rounds.step_reports import NOT_STARTED
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.environments.rounds import MAINS, RoundEnv
from tests.environments.runtime import POD
from tests.fakes.standbys import Standbys

LONG = 3000.0
"""Seconds that no test waits for."""


def standbys(env: RoundEnv) -> Standbys:
    assert env.pod.cri_env.standbys is not None
    return env.pod.cri_env.standbys


def cannot_start_beside(env: RoundEnv) -> None:
    """Have the old containers stopped before their successors start, as on a node without fanotify."""
    standbys(env).refusal = "no fanotify"


async def test_death_is_reported_before_the_successor_starts(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StartContainer", seconds=LONG)
    death = await env.order().death()
    assert (death.phase, death.reason) == (StepPhase.STOPPED, NOT_STARTED)
    assert {"prepare", "stop", "create"} <= death.seconds.keys()
    running = await env.pod.running()
    assert not any(running.get(name) for name in MAINS)


async def test_death_is_reported_once_all_old_containers_are_dead(env: RoundEnv) -> None:
    await env.exits("logger", code=1)
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StopContainer", seconds=LONG)
    reported = env.order()
    await eventually.true(lambda: {"StopContainer", "StartContainer"} <= set(env.pod.cri_env.server.called()))
    assert reported.deaths.empty()
    assert reported.step_results.empty()
    env.rounds.abort("default/gang-1", [], reason="Test")


async def test_successor_that_starts_after_the_release_is_never_held(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StartContainer", seconds=0.5)
    reported = env.order()
    await reported.death()
    env.rounds.release("default/gang-1", [POD.uid])
    running = await reported.next()
    assert (running.phase, running.unheld_seconds) == (StepPhase.RUNNING, 0.0)
    assert {"start"} <= running.seconds.keys()
    assert "held" not in running.seconds
    assert env.freezer.ever == []
    found = await env.pod.running()
    assert [len(found[name]) for name in MAINS] == [1, 1]


async def test_successor_that_starts_before_the_release_is_held(env: RoundEnv) -> None:
    cannot_start_beside(env)
    reported = env.order()
    await reported.death()
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = await env.newest()
    assert env.freezer.still() == {newest[name] for name in MAINS}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_phases_of_a_member_that_is_released_at_its_death_are_counted(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StartContainer", seconds=0.5)
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.death()
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    sample = env.registry.get_sample_value
    await eventually.true(lambda: sample("kubemend_round_unheld_seconds_count") == 1)
    assert sample("kubemend_round_phase_seconds_count", {"phase": "stop"}) == 1


async def test_kubelets_copy_of_a_successor_that_was_never_held_is_removed(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StartContainer", seconds=0.5)
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.death()
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    env.pod.cri_env.server.delay("StartContainer", seconds=0.0)
    ours = (await env.newest())["trainer"]
    theirs = await env.pod.kubelet_starts("trainer", attempt=3, start=False)  # the name between them is reserved
    with contextlib.suppress(NotFound):  # it may be removed already
        await env.pod.cri_env.cri.start_container(theirs)

    async def ours_runs_alone() -> bool:
        return (await env.pod.running())["trainer"] == [ours]

    await eventually.true(ours_runs_alone)
    assert theirs not in {view.id for view in await env.pod.containers()}


@pytest.mark.parametrize("beside", [True, False])
async def test_post_start_hook_runs_once(env: RoundEnv, beside: bool) -> None:
    view = env.pod.pods.pods()[POD.uid]
    hook = ExecHook(("warm", "up"))
    specs = tuple(replace(spec, post_start=hook if spec.name == "trainer" else None) for spec in view.containers)
    await env.pod.pods.put(replace(view, containers=specs))
    if not beside:
        cannot_start_beside(env)
        env.pod.cri_env.server.delay("StartContainer", seconds=0.5)
    reported = env.order(containers=frozenset({"trainer"}))
    await (reported.next() if beside else reported.death())
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    await eventually.true(lambda: "ExecSync" in env.pod.cri_env.server.called())
    await env.pod.kubelet_says_running("trainer")
    await asyncio.gather(*(task for task in env.tasks if task.get_name() == "order"))
    assert env.pod.cri_env.server.called().count("ExecSync") == 1


async def test_failed_creation_is_reported_and_no_death(env: RoundEnv) -> None:
    """Until the successor exists the member may have to be recreated, and the others must wait for that."""
    cannot_start_beside(env)
    env.pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=1000)
    reported = env.order(containers=frozenset({"trainer"}))
    assert (await reported.next()).phase is StepPhase.FAILED
    assert reported.deaths.empty()
    env.rounds.abort("default/gang-1", [], reason="Test")


async def test_failed_start_is_reported_after_the_death(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.fail("StartContainer", grpc.StatusCode.INTERNAL, times=1000)
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.death()
    assert (await reported.next()).phase is StepPhase.FAILED
    env.rounds.abort("default/gang-1", [], reason="Test")


async def test_member_that_was_killed_is_released_while_the_runtime_cleans_up(env: RoundEnv) -> None:
    env.pod.cri_env.server.delay("StopContainer", seconds=LONG)
    reported = env.order()
    stopped = await reported.step_results.get()
    assert (stopped.phase, stopped.reason) == (StepPhase.STOPPED, "")
    assert {"create", "start", "stop"} <= stopped.seconds.keys()
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert env.freezer.still() == set()


async def test_slow_death_is_left_to_the_runtime(env: RoundEnv) -> None:
    standbys(env).slow_to_die = True
    env.pod.cri_env.server.delay("StopContainer", seconds=LONG)
    reported = env.order()
    await eventually.true(lambda: "StopContainer" in env.pod.cri_env.server.called())
    assert reported.step_results.empty()
    env.rounds.abort("default/gang-1", [], reason="Test")


async def test_next_agent_starts_the_successor_of_a_reported_death(env: RoundEnv) -> None:
    cannot_start_beside(env)
    env.pod.cri_env.server.delay("StartContainer", seconds=LONG)
    await env.order().death()
    await env.die()
    env.pod.cri_env.server.delay("StartContainer", seconds=0.0)
    await env.start()
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = await env.newest()
    assert env.freezer.still() == {newest[name] for name in MAINS}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_program_that_ends_right_after_the_release_has_run(env: RoundEnv) -> None:
    """Its end is a fault of its own: the round does not report the member as failed as well."""
    env.pod.cri_env.server.delay("StopContainer", seconds=1.0)
    reported = env.order(containers=frozenset({"trainer"}))
    assert (await reported.step_results.get()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.step_results.get()).phase is StepPhase.RUNNING
    successor = (await env.newest())["trainer"]
    env.pod.cri_env.server.runtime.exit(successor, exit_code=1)
    await asyncio.gather(*(task for task in env.tasks if task.get_name() == "order"))
    assert reported.step_results.empty()
    assert not env.rounds.expects_end(successor), "it is reported as a fault"


async def test_failure_of_a_program_that_was_released_while_it_was_being_frozen_is_reported(env: RoundEnv) -> None:
    """The gang is released at the deaths: its successors may be starting."""
    cannot_start_beside(env)
    freeze, begun, may_freeze = env.freezer.freeze, asyncio.Event(), asyncio.Event()

    async def slow(container_id: ContainerId, **how: Any) -> float:
        begun.set()
        await may_freeze.wait()
        return await freeze(container_id, **how)

    env.freezer.freeze = slow  # type: ignore[method-assign]
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.death()
    await begun.wait()
    env.rounds.release("default/gang-1", [])
    may_freeze.set()
    assert (await reported.next()).phase is StepPhase.RUNNING
    await asyncio.gather(*(task for task in env.tasks if task.get_name() == "order"))
    assert not env.rounds.expects_end((await env.newest())["trainer"])


async def test_member_whose_trigger_ended_while_no_agent_ran_counts_once(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next agent decides about it again: the restart of the previous one has changed nothing."""
    view = env.pod.pods.pods()[POD.uid]
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))
    specs = tuple(replace(spec, restart_rules=(rule,)) for spec in view.containers)
    await env.pod.pods.put(replace(view, containers=specs))
    begin, has_begun = env.store.begin, asyncio.Event()

    async def dying(*begun: Any, **how: Any) -> None:
        await begin(*begun, **how)
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(env.store, "begin", dying)
    env.order(strategy="rules")
    await has_begun.wait()
    await env.die()
    monkeypatch.setattr(env.store, "begin", begin)
    (counted,) = await env.store.begun_since(0.0)
    env.pod.cri_env.server.runtime.exit(env.pod.old["trainer"], exit_code=1)
    await env.start()

    async def is_uncounted() -> bool:
        return counted not in await env.store.begun_since(0.0)

    await eventually.true(is_uncounted)
