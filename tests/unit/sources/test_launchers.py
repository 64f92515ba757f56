"""Launchers are followed while their containers run, and a program's failure is passed on once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import grpc
import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary
from kubemend.agent.restart.process import FAILED_HOLD, Launcher, Silent, State
from kubemend.agent.sources import launchers
from kubemend.agent.sources.launchers import LauncherWatch
from tests import eventually
from tests.environments.runtime import POD, Rig
from tests.fakes import outside
from tests.unit.hub import builders

RUNS = Launcher(State.RUNNING, trainer=1)
READY = replace(RUNS, spare=77, ready=True)
FAILED = replace(READY, state=State.FAILED, code=3)
SECOND = replace(FAILED, trainer=2)


@dataclass
class Launchers:
    """Answers each call with the next of ``answers``, and then not any more."""

    answers: list[Launcher | Silent]
    asked: list[tuple[Launcher | None, float]] = field(default_factory=list)

    async def follow(self, container: ContainerStatus, *, known: Launcher | None, hold: float) -> Launcher | Silent:
        self.asked.append((known, hold))
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)


@dataclass
class World:
    """A pod with a container whose command is the launcher, and what the watch has passed on."""

    rig: Rig
    pods: outside.Pods
    launchers: Launchers
    states: list[Launcher | Silent | None] = field(default_factory=list)
    failed: list[tuple[ContainerSummary, str, Launcher]] = field(default_factory=list)

    def changed(self, container: ContainerRef, launcher: Launcher | Silent | None) -> None:
        assert container.name == "trainer"
        self.states.append(launcher)

    def has_failed(self, container: ContainerSummary, status: ContainerStatus, launcher: Launcher) -> None:
        self.failed.append((container, status.id, launcher))

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watch = LauncherWatch(
            runtime=self.rig.cri,
            events=self.rig.watch,
            pods=self.pods,
            launchers=self.launchers,
            changed=self.changed,
            failed=self.has_failed,
            hold=lambda pod: FAILED_HOLD if pod.gang is not None else 0.0,
        )
        work = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
def world(rig: Rig) -> World:
    return made(rig, command=["python", "/launcher/kubemend_run.py", "--", "python", "train.py"])


def made(rig: Rig, *, command: Sequence[str]) -> World:
    rig.server.runtime.containers[rig.old].config.command[:] = command
    return World(rig, outside.Pods(replace(builders.member(0), ref=POD)), Launchers([]))


async def test_each_change_is_passed_on_and_asked_for_from_there(world: World) -> None:
    world.launchers.answers += [RUNS, RUNS, READY]
    async with world.watched():
        await eventually.true(lambda: len(world.launchers.asked) == 4)
    assert world.states == [RUNS, READY]
    assert world.launchers.asked == [(each, FAILED_HOLD) for each in (None, RUNS, RUNS, READY)]


async def test_each_programs_failure_is_passed_on_once(world: World) -> None:
    world.launchers.answers += [FAILED, FAILED, RUNS, FAILED, SECOND]
    async with world.watched():
        await eventually.true(lambda: len(world.launchers.asked) == 6)
    assert [(view.id, status, launcher) for view, status, launcher in world.failed] == [
        (world.rig.old, world.rig.old, FAILED),
        (world.rig.old, world.rig.old, SECOND),
    ]


async def test_a_failure_outside_gangs_does_not_wait_for_the_agent(world: World) -> None:
    (pod,) = world.pods.pods().values()
    await world.pods.put(replace(pod, labels={}))
    async with world.watched():
        await eventually.true(lambda: world.launchers.asked == [(None, 0.0)])


async def test_a_launcher_that_does_not_answer_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_FIRST_RETRY", 0.0)
    gone = Silent("gone")
    world.launchers.answers += [Silent("not yet"), RUNS, gone, gone, RUNS]
    async with world.watched():
        await eventually.true(lambda: len(world.launchers.asked) == 6)
    assert world.states == [Silent("not yet"), RUNS, gone, RUNS]


async def test_a_launcher_is_not_followed_after_its_container(world: World) -> None:
    world.launchers.answers += [READY]
    async with world.watched():
        await eventually.true(lambda: world.states == [READY])
        world.rig.server.runtime.exit(world.rig.old, exit_code=3)
        await eventually.true(lambda: world.states == [READY, None])


@pytest.mark.parametrize(
    ("command", "annotations"),
    [(["python", "train.py"], {"kubemend.io/restart": "InPlace"}), (["kubemend-run"], {"kubemend.io/restart": "Off"})],
    ids=["no-launcher", "not-opted-in"],
)
async def test_other_containers_are_not_asked(rig: Rig, command: list[str], annotations: dict[str, str]) -> None:
    world = made(rig, command=command)
    (pod,) = world.pods.pods().values()
    await world.pods.put(replace(pod, annotations=annotations))
    async with world.watched():
        await rig.kubelet_creates(attempt=1)
        await world.pods.put(replace(pod, annotations=annotations))
        await eventually.true(lambda: rig.server.called().count("ContainerStatus") > 0 or "Off" in annotations.values())
    assert world.launchers.asked == []


async def test_a_container_that_the_runtime_does_not_report_is_not_followed(world: World) -> None:
    world.rig.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    async with world.watched():
        await eventually.true(lambda: world.rig.server.called().count("ContainerStatus") == 1)
    assert world.launchers.asked == []


async def test_a_launcher_that_invents_failures_is_not_believed_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 0.0)
    world.launchers.answers += [replace(FAILED, trainer=number) for number in range(1, 31)]
    async with world.watched():
        await eventually.true(lambda: len(world.launchers.asked) == 31)
    assert len(world.failed) == launchers.MOST_FAILURES.limit


async def test_a_launcher_that_changes_without_end_is_asked_at_intervals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_LEAST_INTERVAL", 3600.0)
    world.launchers.answers += [RUNS, READY, RUNS]
    async with world.watched():
        await eventually.true(lambda: bool(world.states))
        await asyncio.sleep(0)
    assert len(world.launchers.asked) == 1
