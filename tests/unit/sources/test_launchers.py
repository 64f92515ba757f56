"""Launchers are followed while their containers run, and a program's failure is passed on once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc
import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerSummary
from kubemend.agent.restart import admission, process
from kubemend.agent.restart.process import FAILED_HOLD, Launcher, LauncherUnavailable, State
from kubemend.agent.sources import launchers
from kubemend.agent.sources.launchers import LauncherWatch
from kubemend.common import contained
from tests import eventually
from tests.environments.runtime import POD, CriEnv
from tests.fakes import outside
from tests.unit.hub import builders

RUNS = Launcher(State.RUNNING, program=1)
READY = replace(RUNS, spare=77, ready=True)
FAILED = replace(READY, state=State.FAILED, code=3)
SECOND = replace(FAILED, program=2)


COMMAND = ("python", "/launcher/kubemend_run.py", "--", "python", "train.py")


@dataclass
class Launchers:
    """Answers each call with the next of ``answers``, or of its container's own, and then not until it ``goes_on``."""

    answers: list[Launcher | LauncherUnavailable]
    of_container: dict[ContainerId, list[Launcher | LauncherUnavailable]] = field(default_factory=dict)
    asked: list[tuple[Launcher | None, float]] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def go_on(self, *answers: Launcher | LauncherUnavailable, container: ContainerId | None = None) -> None:
        (self.answers if container is None else self.of_container.setdefault(container, [])).extend(answers)
        self._more.set()

    async def follow(
        self, container: ContainerStatus, *, known: Launcher | None, hold: float
    ) -> Launcher | LauncherUnavailable:
        self.asked.append((known, hold))
        while not (answers := self.of_container.get(container.id, self.answers)):
            self._more.clear()
            await self._more.wait()
        return answers.pop(0)


@dataclass
class Memory:
    """The numbers of programs from a previous agent, and those saved now."""

    known: Mapping[ContainerId, int] = field(default_factory=dict)
    saved: list[Mapping[ContainerId, int]] = field(default_factory=list)

    async def load(self) -> Mapping[ContainerId, int]:
        return self.known

    async def save(self, numbers: Mapping[ContainerId, int]) -> None:
        self.saved.append(numbers)


@dataclass
class Env:
    """A pod with a container whose command is the launcher, and what the watch has passed on."""

    cri_env: CriEnv
    pods: outside.Pods
    launchers: Launchers
    states: list[Launcher | LauncherUnavailable | None] = field(default_factory=list)
    failed: list[tuple[ContainerSummary, str, Launcher]] = field(default_factory=list)
    ages: list[float | None] = field(default_factory=list)
    renewed: list[ContainerId] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    fails: bool = False

    def changed(self, container: ContainerRef, launcher: Launcher | LauncherUnavailable | None) -> None:
        assert container.name == "trainer"
        if self.fails:
            raise ValueError
        self.states.append(launcher)

    def has_failed(self, container: ContainerSummary, status: ContainerStatus, launcher: Launcher) -> None:
        self.failed.append((container, status.id, launcher))

    async def started(self, *, attempt: int) -> ContainerId:
        """Start another container with the launcher, as kubelet does; return its id."""
        config = self.cri_env.config(attempt=attempt)
        config.command[:] = COMMAND
        made = await self.cri_env.cri.create_container(
            sandbox_id=self.cri_env.sandbox_id, config=config, sandbox_config=self.cri_env.sandbox_config
        )
        await self.cri_env.cri.start_container(made)
        return made

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watch = LauncherWatch(
            runtime=self.cri_env.cri,
            events=self.cri_env.watch,
            pods=self.pods,
            launchers=self.launchers,
            memory=self.memory,
            changed=self.changed,
            failed=self.has_failed,
            hold=lambda pod: FAILED_HOLD if pod.gang is not None else 0.0,
            started=lambda _, age: self.ages.append(age),
            renewed=self.renewed.append,
        )
        work = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
def env(cri_env: CriEnv) -> Env:
    return made(cri_env, command=COMMAND)


def made(cri_env: CriEnv, *, command: Sequence[str]) -> Env:
    cri_env.server.runtime.containers[cri_env.old].config.command[:] = command
    return Env(cri_env, outside.Pods(replace(builders.member(0), ref=POD)), Launchers([]))


async def test_each_change_is_passed_on_and_asked_for_from_there(env: Env) -> None:
    env.launchers.answers += [RUNS, RUNS, READY]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 4)
    assert env.states == [RUNS, READY]
    assert env.launchers.asked == [(each, FAILED_HOLD) for each in (None, RUNS, RUNS, READY)]


async def test_start_of_each_program_is_passed_on(env: Env) -> None:
    env.launchers.answers += [
        replace(RUNS, age=100.0),
        LauncherUnavailable("it is slow"),
        replace(RUNS, age=0.0),  # the clock was set
        replace(RUNS, program=2, age=0.5),
    ]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 5)
        assert env.ages == [100.0, 0.5]
        env.cri_env.server.runtime.exit(env.cri_env.old, exit_code=0)
        await eventually.true(lambda: env.ages[-1] is None)


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([RUNS, READY, RUNS], 0),
        ([replace(RUNS, program=7, age=9000.0)], 0),
        ([RUNS, replace(RUNS, program=2)], 1),
        ([RUNS, replace(RUNS, state=State.RESTARTING), replace(RUNS, program=2)], 2),
        ([RUNS, FAILED, replace(FAILED, state=State.RESTARTING), replace(RUNS, program=2)], 2),
        ([replace(RUNS, state=State.RESTARTING)], 1),
        ([RUNS, LauncherUnavailable("it is slow"), RUNS], 0),
        ([RUNS, LauncherUnavailable("it is slow"), replace(RUNS, program=2)], 1),
    ],
)
async def test_program_that_ends_by_itself_and_the_next_one_are_passed_on(
    env: Env, monkeypatch: pytest.MonkeyPatch, answers: list[Launcher | LauncherUnavailable], times: int
) -> None:
    """At the agent's start, the program that runs may be older than the agent."""
    monkeypatch.setattr(launchers, "_FIRST_RETRY", 0.0)
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 0.0)
    env.launchers.answers += answers
    asked = len(answers) + 1
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == asked)
    assert env.renewed == [env.cri_env.old] * times


async def not_opted_in_for_a_moment(env: Env) -> None:
    """Have the pod's launcher be followed no longer, and then again."""
    pod = env.pods.pods()[POD.uid]
    await env.pods.put(replace(pod, annotations={}))
    await eventually.true(lambda: env.states[-1] is None)
    await env.pods.put(pod)


async def test_program_that_began_while_its_pod_was_not_opted_in_for_a_moment_is_passed_on(env: Env) -> None:
    """The heartbeat that it has not begun yet was the former program's."""
    env.launchers.answers += [replace(RUNS, age=100.0)]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 2)
        await not_opted_in_for_a_moment(env)
        await eventually.true(lambda: len(env.launchers.asked) == 3)
        env.launchers.go_on(replace(RUNS, program=2, age=1.0))
        await eventually.true(lambda: len(env.launchers.asked) == 4)
    assert env.renewed == [env.cri_env.old]
    assert env.ages == [100.0, None, 1.0]


@pytest.mark.parametrize(
    ("known", "found", "times"), [(None, 2, 0), (1, 2, 1), (2, 2, 0)], ids=["no-agent-before", "another", "the-same"]
)
async def test_program_that_began_while_no_agent_ran_is_passed_on(
    env: Env, known: int | None, found: int, times: int
) -> None:
    """The previous agent has seen the former program's heartbeat, and remembers the container."""
    env.memory.known = {env.cri_env.old: known} if known is not None else {}
    env.launchers.answers += [replace(RUNS, program=found)]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 2)
    assert env.renewed == [env.cri_env.old] * times


async def test_number_of_each_program_is_left_to_the_next_agent(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_SAVE_AFTER", 0.0)
    env.memory.known = {ContainerId("ended"): 5}
    env.launchers.answers += [RUNS]
    async with env.watched():
        await eventually.true(lambda: env.memory.saved == [{env.cri_env.old: 1}])
        await eventually.true(lambda: len(env.launchers.asked) == 2)
        env.launchers.go_on(READY, replace(RUNS, program=2))
        await eventually.true(lambda: env.memory.saved == [{env.cri_env.old: 1}, {env.cri_env.old: 2}])


async def test_each_programs_failure_is_passed_on_once(env: Env) -> None:
    env.launchers.answers += [FAILED, FAILED, RUNS, FAILED, SECOND]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 6)
    assert [(view.id, status, launcher) for view, status, launcher in env.failed] == [
        (env.cri_env.old, env.cri_env.old, FAILED),
        (env.cri_env.old, env.cri_env.old, SECOND),
    ]


async def test_a_failure_is_passed_on_once_although_its_pod_was_not_opted_in_for_a_moment(env: Env) -> None:
    env.launchers.answers += [FAILED]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 2)
        await not_opted_in_for_a_moment(env)
        await eventually.true(lambda: len(env.launchers.asked) == 3)
        env.launchers.go_on(FAILED, SECOND)
        await eventually.true(lambda: len(env.launchers.asked) == 5)
    assert [launcher.program for _, _, launcher in env.failed] == [1, 2]


async def test_a_failure_outside_gangs_does_not_wait_for_the_agent(env: Env) -> None:
    (pod,) = env.pods.pods().values()
    await env.pods.put(replace(pod, labels={}))
    async with env.watched():
        await eventually.true(lambda: env.launchers.asked == [(None, 0.0)])


async def test_a_launcher_that_does_not_answer_is_asked_again(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_FIRST_RETRY", 0.0)
    gone = LauncherUnavailable("gone")
    env.launchers.answers += [LauncherUnavailable("not yet"), RUNS, gone, gone, RUNS]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 6)
    assert env.states == [LauncherUnavailable("not yet"), RUNS, gone, RUNS]


async def test_a_launcher_is_not_followed_after_its_container(env: Env) -> None:
    env.launchers.answers += [READY]
    async with env.watched():
        await eventually.true(lambda: env.states == [READY])
        env.cri_env.server.runtime.exit(env.cri_env.old, exit_code=3)
        await eventually.true(lambda: env.states == [READY, None])


@pytest.mark.parametrize(
    ("command", "annotations"),
    [(["python", "train.py"], {"kubemend.io/restart": "InPlace"}), (["kubemend-run"], {"kubemend.io/restart": "Off"})],
    ids=["no-launcher", "not-opted-in"],
)
async def test_other_containers_are_not_asked(cri_env: CriEnv, command: list[str], annotations: dict[str, str]) -> None:
    env = made(cri_env, command=command)
    (pod,) = env.pods.pods().values()
    await env.pods.put(replace(pod, annotations=annotations))
    async with env.watched():
        await cri_env.kubelet_creates(attempt=1)
        await env.pods.put(replace(pod, annotations=annotations))
        await eventually.true(
            lambda: cri_env.server.called().count("ContainerStatus") > 0 or "Off" in annotations.values()
        )
    assert env.launchers.asked == []


async def test_a_launcher_is_followed_as_soon_as_the_runtime_reports_its_container(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_FIRST_RETRY", 0.0)
    env.cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=2)
    env.launchers.answers += [READY]
    async with env.watched():
        await eventually.true(lambda: env.states == [READY])


async def test_after_an_internal_error_a_launcher_does_not_stay_ready(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 0.0)
    env.launchers.answers += [READY]
    before = contained.count([contained.Part.CONTAINER])
    async with env.watched():
        await eventually.true(lambda: env.states == [READY])
        monkeypatch.setattr(process, "is_news", lambda *_: 1 / 0)
        env.launchers.go_on(RUNS)
        await eventually.true(lambda: len(env.states) == 2)
    assert isinstance(env.states[1], LauncherUnavailable)
    assert contained.count([contained.Part.CONTAINER]) == before + 1


async def test_an_error_about_one_state_is_contained(env: Env) -> None:
    env.launchers.answers += [READY]
    before = contained.count([contained.Part.CONTAINER])
    env.fails = True
    async with env.watched():
        await eventually.true(lambda: contained.count([contained.Part.CONTAINER]) == before + 1)
        env.fails = False
        env.launchers.go_on(RUNS)
        await eventually.true(lambda: env.states == [RUNS])


async def test_an_error_about_one_pod_is_contained(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contained.count([contained.Part.CONTAINER])
    with monkeypatch.context() as patch:
        patch.setattr(admission, "no_fault_reason", lambda *_, **__: 1 / 0)
        async with env.watched():
            await eventually.true(lambda: contained.count([contained.Part.CONTAINER]) > before)
            patch.undo()
            (pod,) = env.pods.pods().values()
            await env.pods.put(pod)
            await eventually.true(lambda: len(env.launchers.asked) == 1)


async def test_the_newer_of_two_containers_of_a_name_counts(env: Env) -> None:
    env.launchers.answers += [READY]
    async with env.watched():
        await eventually.true(lambda: env.states == [READY])
        env.launchers.go_on(RUNS, container=await env.started(attempt=1))
        await eventually.true(lambda: env.states == [READY, RUNS])
        env.cri_env.server.runtime.exit(env.cri_env.old, exit_code=3)
        await eventually.true(lambda: len(env.states) == 3)
    assert env.states == [READY, RUNS, RUNS]


async def test_containers_without_a_launcher_and_other_pods_leave_room(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "MOST", 1)
    env = made(cri_env, command=["python", "train.py"])
    async with env.watched():
        await eventually.true(lambda: cri_env.server.called().count("ContainerStatus") == 1)
        await env.started(attempt=1)
        await eventually.true(lambda: len(env.launchers.asked) == 1)


@pytest.mark.parametrize("limit", ["MOST_OF_POD", "MOST_OF_NAMESPACE"])
async def test_launchers_of_a_pod_and_of_a_namespace_are_limited(
    env: Env, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, limit, 1)
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 1)
        await env.started(attempt=1)
        await eventually.true(lambda: len(env.cri_env.watch.containers()) == 2)
        (pod,) = env.pods.pods().values()
        await env.pods.put(pod)
        await asyncio.sleep(0)
        assert len([task for task in asyncio.all_tasks() if task.get_name().startswith("launcher of")]) == 1
        env.cri_env.server.runtime.exit(env.cri_env.old, exit_code=3)
        await eventually.true(lambda: len(env.launchers.asked) == 2)
    assert env.states == [None]


async def test_a_launcher_that_invents_failures_is_not_believed_without_end(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 0.0)
    env.launchers.answers += [replace(FAILED, program=number) for number in range(1, 31)]
    async with env.watched():
        await eventually.true(lambda: len(env.launchers.asked) == 31)
    assert len(env.failed) == launchers.MOST_FAILURES.limit


async def test_a_launcher_that_changes_without_end_is_asked_at_intervals(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 3600.0)
    env.launchers.answers += [RUNS, READY, RUNS]
    async with env.watched():
        await eventually.true(lambda: bool(env.states))
        await asyncio.sleep(0)
    assert len(env.launchers.asked) == 1
