"""Which heartbeats are watched, when a hang is reported, and the report about a file that cannot be read."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import RuntimeUnavailable
from kubemend.agent.health.state.heartbeat import Blank, HeartbeatStatus, Mark
from kubemend.agent.health.state.next_step import FileCheck
from kubemend.agent.model.hangs import Hang
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodUid,
    PodView,
)
from kubemend.agent.restart import members, options
from kubemend.agent.sources import heartbeat_watch
from kubemend.agent.sources.heartbeats import HeartbeatSource
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.side_process import Calls, SideProcess
from tests.fakes import hanging_fs, outside
from tests.fakes.calls_in_threads import CallsInThreads
from tests.fakes.proc_tree import ProcTree, container_id
from tests.unit.restart import builders

TRAINER = builders.TARGET
TIMEOUT = 0.3
PATIENCE = 60.0
ME, PID = container_id(1), 100
OTHER_POD = replace(builders.POD, name="other", uid=PodUid("uid-other"))


@dataclass
class Runtime:
    """Returns the pids of containers."""

    pids: dict[ContainerId, int | None] = field(default_factory=dict)
    away: bool = False
    started_at: int = 0

    async def container_status(self, container: ContainerId) -> ContainerStatus:
        if self.away:
            raise RuntimeUnavailable("away", where="/run/x.sock")
        return ContainerStatus(
            id=container,
            ref=TRAINER,
            attempt=0,
            state=ContainerState.RUNNING,
            created_at=0,
            started_at=self.started_at,
            finished_at=0,
            exit_code=0,
            reason="",
            message="",
            log_path="",
            annotations={},
            pid=self.pids[container],
        )


@dataclass
class Memory:
    """State from a previous agent, and the state saved now."""

    known: frozenset[ContainerId] = frozenset()
    saved: "asyncio.Queue[frozenset[ContainerId]]" = field(default_factory=asyncio.Queue)

    async def load(self) -> frozenset[ContainerId]:
        return self.known

    async def save(self, beating: frozenset[ContainerId]) -> None:
        self.saved.put_nowait(beating)


@dataclass
class Recorded:
    """Records the listener's calls."""

    hangs: "asyncio.Queue[Hang]" = field(default_factory=asyncio.Queue)
    silent: "asyncio.Queue[tuple[ContainerRef, float | None]]" = field(default_factory=asyncio.Queue)
    checks: dict[ContainerId, list[FileCheck]] = field(default_factory=dict)
    forgotten: "asyncio.Queue[ContainerId]" = field(default_factory=asyncio.Queue)

    def hung(self, hang: Hang) -> None:
        self.hangs.put_nowait(hang)

    def silent_for(self, container: ContainerRef, seconds: float | None) -> None:
        self.silent.put_nowait((container, seconds))

    def polled(self, container: ContainerSummary, check: FileCheck) -> None:
        self.checks.setdefault(container.id, []).append(check)

    def unwatched(self, container: ContainerSummary) -> None:
        self.forgotten.put_nowait(container.id)


@dataclass
class Env:
    """One node with one training pod, and the source."""

    tree: ProcTree
    source: HeartbeatSource
    runtime: Runtime
    pods: outside.Pods
    events: outside.Events
    memory: Memory
    recorded: Recorded
    statuses: list[ComponentStatus]

    def begin(self, container: ContainerId = ME, *, pid: int = PID, ref: ContainerRef = TRAINER) -> Path:
        """Start a container; return its heartbeat file in the node's view."""
        (self.tree.run(container, pid=pid) / "tmp").mkdir()
        self.runtime.pids[container] = pid
        self.events.run(ref, name=container)
        return self.tree.roots[container] / "tmp" / "beat"

    async def polled(self, times: int = 1, *, at: ContainerRef = TRAINER) -> list[float | None]:
        """Wait for so many checks of a container from now on; return the silence that each has reported."""
        while not self.recorded.silent.empty():
            self.recorded.silent.get_nowait()
        seen: list[float | None] = []
        async with asyncio.timeout(PATIENCE):
            while len(seen) < times:
                container, seconds = await self.recorded.silent.get()
                if container == at:
                    seen.append(seconds)
        return seen

    def shown(self, *, at: ContainerRef = TRAINER) -> float | None:
        """Return a container's silence as it was reported last."""
        reported = [self.recorded.silent.get_nowait() for _ in range(self.recorded.silent.qsize())]
        return [seconds for container, seconds in reported if container == at][-1]

    async def beats(self, file: Path, *, at: ContainerRef = TRAINER) -> None:
        """Let a container start its heartbeat."""
        await self.polled(at=at)  # an existing file proves nothing
        touch(file)
        while (await self.polled(at=at))[-1] is None:
            touch(file)

    async def hangs(self) -> Hang:
        async with asyncio.timeout(PATIENCE):
            return await self.recorded.hangs.get()

    async def never_hangs(self, *, checks: int = 12) -> list[float | None]:
        """Watch for three times the timeout; no hang may be reported. Return the reported silences."""
        seen = await self.polled(checks)
        assert self.recorded.hangs.empty()
        return seen


def annotated(timeout: float = TIMEOUT, **changes: Any) -> PodView:
    written = {"kubemend.io/heartbeat-file": "/tmp/beat", "kubemend.io/heartbeat-timeout": f"{timeout}s"}
    return replace(builders.pod(**changes), annotations={"kubemend.io/restart": "InPlace"} | written)


def make(
    tmp_path: Path, *pods: PodView, known: frozenset[ContainerId] = frozenset(), calls: Calls | None = None
) -> Env:
    tree = ProcTree(tmp_path)
    runtime, events, memory, recorded = Runtime(), outside.Events(), Memory(known), Recorded()
    api, statuses = outside.Pods(*pods), list[ComponentStatus]()
    source = HeartbeatSource(
        runtime=runtime,
        events=events,
        pods=api,
        processes=ProcFs(root=tree.proc, cgroup_root=tree.cgroups),
        memory=memory,
        listener=recorded,
        polls=recorded,
        report=statuses.append,
        calls=calls if calls is not None else CallsInThreads(),
    )
    return Env(tree, source, runtime, api, events, memory, recorded, statuses)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten timeouts, so that tests need not wait for seconds."""
    monkeypatch.setattr(options, "SHORTEST_HEARTBEAT", 0.0)


@pytest.fixture
async def env(tmp_path: Path, short_timeouts: None) -> AsyncIterator[Env]:
    async with running(make(tmp_path, annotated())) as made:
        yield made


@contextlib.asynccontextmanager
async def running(env: Env) -> AsyncIterator[Env]:
    work = asyncio.create_task(env.source.run(), name="heartbeats")
    yield env
    work.cancel()
    results = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError), results


async def test_hang_is_reported_once_with_thread_states(env: Env) -> None:
    file = env.begin()
    env.tree.thread(PID, tid=PID + 1, state="D", name="nccl", waits_in="nv_ioctl")
    await env.beats(file)
    hang = await env.hangs()
    assert (hang.target, hang.container_id, hang.file, hang.timeout) == (TRAINER, ME, "/tmp/beat", TIMEOUT)
    assert hang.silent >= TIMEOUT
    assert hang.doing == "threads: 1 D, 1 S; nccl (101) D in nv_ioctl"
    assert hang.threads[0].stack == ("nv_ioctl", "do_syscall_64")
    silences = await env.never_hangs()
    assert None not in silences
    assert silences == sorted(filter(None, silences)), "its age grows"


async def test_beating_container_is_not_reported(tmp_path: Path, short_timeouts: None) -> None:
    async with running(make(tmp_path, annotated(5 * TIMEOUT))) as env:  # longer than a busy machine needs for a beat
        file = env.begin()

        async def beat() -> None:
            while True:
                file.touch()
                await asyncio.sleep(TIMEOUT / 20)

        beating = asyncio.create_task(beat())
        await env.beats(file)
        silences = await env.never_hangs()
        beating.cancel()
        assert None not in silences


@pytest.mark.parametrize("is_there", [False, True])
async def test_container_that_never_touched_its_file_is_not_reported(env: Env, *, is_there: bool) -> None:
    file = env.begin()
    if is_there:
        touch(file)  # written by its predecessor, on a volume, before the first check
    assert set(await env.never_hangs()) == {None}


async def test_hang_after_another_beat_is_reported_again(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    await env.hangs()
    assert await env.source.still_hung(ME) == ""
    touched = time.monotonic()
    file.touch()
    assert await env.source.still_hung(ME) == "it beats again"
    assert (await env.hangs()).silent < time.monotonic() - touched + TIMEOUT


async def test_program_restarted_in_its_container_is_watched_from_its_first_beat(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    await env.hangs()
    env.source.restarted(ME)
    assert env.shown() is None
    assert await env.source.still_hung(ME) != ""
    assert set(await env.never_hangs()) == {None}
    await env.beats(file)
    await env.hangs()


async def test_persisting_hang_is_reported_again_after_a_while(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_watch, "_REPORT_AGAIN", TIMEOUT)
    await env.beats(env.begin())
    first, second = await env.hangs(), await env.hangs()
    assert second.silent > first.silent


async def test_still_hung_returns_why_a_hang_no_longer_counts(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    await env.hangs()
    env.tree.freeze(ME)
    assert await env.source.still_hung(ME) == "its heartbeat file could not be read"
    env.tree.freeze(ME, frozen=False)
    file.unlink()
    assert await env.source.still_hung(ME) == "its heartbeat file has been removed, or its program restarted"
    env.events.stop(ME)
    await until(lambda: not env.source._watches)
    assert await env.source.still_hung(ME) == "it has ended, or its heartbeat is no longer requested"


async def test_frozen_container_gets_whole_timeout_when_thawed(env: Env) -> None:
    await env.beats(env.begin())
    env.tree.freeze(ME)
    assert (await env.never_hangs())[-1] is None
    thawed = time.monotonic()
    env.tree.freeze(ME, frozen=False)
    assert (await env.hangs()).silent < time.monotonic() - thawed + TIMEOUT


async def test_container_in_a_debugger_is_not_reported(env: Env) -> None:
    file = env.begin()
    env.tree.thread(PID, tid=PID + 1, state="t")
    await env.beats(file)
    await env.never_hangs()
    env.tree.thread(PID, tid=PID + 1, state="S")
    await env.hangs()


async def test_successor_starts_without_heartbeat(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    await env.hangs()
    env.events.stop(ME)
    successor = container_id(2)
    env.begin(successor, pid=PID + 1).touch()
    assert set(await env.never_hangs()) == {None}


async def test_restarted_agent_finds_hangs_from_before(tmp_path: Path, short_timeouts: None) -> None:
    async with running(make(tmp_path, annotated(), known=frozenset({ME}))) as env:
        env.begin().touch()
        assert (await env.hangs()).container_id == ME


async def test_program_that_a_replay_restarts_before_the_watch_begins_is_watched_from_its_first_beat(
    tmp_path: Path, short_timeouts: None
) -> None:
    """The previous agent had seen the former program's heartbeat."""
    env = make(tmp_path, annotated(), known=frozenset({ME}))
    env.source.restarted(ME)
    async with running(env):
        file = env.begin()
        file.touch()
        assert set(await env.never_hangs()) == {None}
        await env.beats(file)
        await env.hangs()


async def test_heartbeat_is_remembered_until_the_container_ends(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    async with asyncio.timeout(PATIENCE):
        assert await env.memory.saved.get() == {ME}
        env.events.stop(ME)
        assert await env.memory.saved.get() == set()


async def test_hanging_file_system_affects_no_other_container(tmp_path: Path, short_timeouts: None) -> None:
    other = ContainerRef(OTHER_POD, "trainer")
    calls = SideProcess("under test", cgroup_root=tmp_path)
    pods = annotated(), replace(annotated(), ref=OTHER_POD)
    async with running(make(tmp_path, *pods, calls=calls)) as env:
        (env.tree.run(ME, pid=PID)).mkdir(exist_ok=True)
        with hanging_fs.mounted(env.tree.roots[ME] / "tmp") as file_system:
            env.runtime.pids[ME] = PID
            env.events.run(TRAINER, name=ME)
            file = env.begin(container_id(2), pid=PID + 1, ref=other)
            await asyncio.to_thread(file_system.asked.wait, PATIENCE)
            await env.beats(file, at=other)
            assert (await env.hangs()).target == other
            assert set(await env.polled(3)) == {None}
            assert env.source._watches[ME][0].state.status is HeartbeatStatus.UNKNOWN
        touch(env.tree.roots[ME] / "tmp" / "beat")
        await env.beats(env.tree.roots[ME] / "tmp" / "beat")
        while (await env.hangs()).target != TRAINER:
            continue


async def test_unavailable_runtime_is_queried_again(env: Env) -> None:
    env.runtime.away = True
    file = env.begin()
    assert set(await env.polled(3)) == {None}
    env.runtime.away = False
    await env.beats(file)
    await env.hangs()


async def test_pid_of_another_container_is_not_inspected(env: Env) -> None:
    (env.begin(container_id(2), pid=PID + 1, ref=ContainerRef(builders.POD, "unasked"))).touch()
    (env.tree.run(ME, pid=PID) / "tmp").mkdir()
    env.runtime.pids[ME] = PID + 1
    env.events.run(TRAINER, name=ME)
    assert set(await env.polled(3)) == {None}
    assert env.source._watches[ME][0].state.last is None


SIDECAR = (
    ContainerSpec(name="trainer", role=ContainerRole.MAIN),
    ContainerSpec(name="logger", role=ContainerRole.MAIN),
    ContainerSpec(name="shipper", role=ContainerRole.SIDECAR),
)


@pytest.mark.parametrize(
    ("named", "watched"),
    [("", {"trainer", "logger"}), ("trainer", {"trainer"}), ("shipper,trainer", {"trainer", "shipper"})],
)
async def test_named_containers_are_watched_else_all_main_ones(env: Env, named: str, watched: set[str]) -> None:
    pod = annotated(containers=SIDECAR)
    await env.pods.put(replace(pod, annotations={**pod.annotations, "kubemend.io/containers": named}))
    for number, spec in enumerate(SIDECAR):
        env.begin(container_id(number + 1), pid=PID + number, ref=ContainerRef(builders.POD, spec.name))
    await env.polled()
    assert {watch.view.ref.name for watch, _ in env.source._watches.values()} == watched


async def test_pod_without_request_is_not_watched(tmp_path: Path) -> None:
    async with running(make(tmp_path, builders.pod())) as env:
        env.begin()
        await until(lambda: bool(env.statuses))
        assert {status.state for status in env.statuses} == {ComponentState.IDLE}


async def test_changed_annotation_takes_effect_immediately(env: Env) -> None:
    file = env.begin()
    await env.beats(file)
    await env.pods.put(annotated(timeout=3600))
    await until(lambda: env.source._watches[ME][0].config.timeout == 3600)
    await env.pods.put(builders.pod())
    await until(lambda: not env.source._watches)


async def test_node_with_hidden_cgroups_is_reported_with_hint(env: Env) -> None:
    env.tree.run(ME, pid=PID)
    (env.tree.group(ME) / "cgroup.events").unlink()
    env.runtime.pids[ME] = PID
    env.events.run(TRAINER, name=ME)
    await until(lambda: env.statuses[-1].state is ComponentState.DEGRADED)
    assert "/sys/fs/cgroup" in env.statuses[-1].hint


def touch(file: Path) -> None:
    file.touch()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - an attribute, changed without an event
            await asyncio.sleep(0.005)


async def test_internal_error_on_one_container_leaves_the_others(
    tmp_path: Path, short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ContainerRef(replace(TRAINER.pod, name="trainer-1", uid=PodUid("another")), TRAINER.name)
    poll = heartbeat_watch.Watch.poll

    async def fails_for_other(watch: heartbeat_watch.Watch) -> Any:
        if watch.view.ref == other:
            raise IndexError
        return await poll(watch)

    monkeypatch.setattr(heartbeat_watch.Watch, "poll", fails_for_other)
    async with running(make(tmp_path, annotated(), annotated(ref=other.pod))) as env:
        env.begin(container_id(2), pid=200, ref=other)
        await env.beats(env.begin())
        assert (await env.hangs()).target == TRAINER


async def test_internal_error_on_options_of_a_pod_leaves_the_others(
    tmp_path: Path, short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = annotated(ref=replace(TRAINER.pod, name="trainer-1", uid=PodUid("another")), timeout=7)
    parse = options.parse

    def fails_for_other(annotations: Mapping[str, str]) -> options.Options:
        if annotations == other.annotations:
            raise IndexError
        return parse(annotations)

    monkeypatch.setattr(options, "parse", fails_for_other)
    async with running(make(tmp_path, other, annotated())) as env:
        await env.beats(env.begin())
        assert (await env.hangs()).target == TRAINER


async def test_internal_error_on_targets_of_a_pod_leaves_the_others(
    tmp_path: Path, short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ContainerRef(replace(TRAINER.pod, name="trainer-1", uid=PodUid("another")), TRAINER.name)
    targets = members.targets

    def fails_for_other(pod: PodView, **more: Any) -> Any:
        if pod.ref == other.pod:
            raise IndexError
        return targets(pod, **more)

    monkeypatch.setattr(members, "targets", fails_for_other)
    async with running(make(tmp_path, annotated(ref=other.pod), annotated())) as env:
        env.begin(container_id(2), pid=200, ref=other)
        await env.beats(env.begin())
        assert (await env.hangs()).target == TRAINER


class Gated(CallsInThreads):
    """Inspects containers only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, work: Callable[[], Any], *, owner: str, timeout: float) -> Any:
        await self.gate.wait()
        return await super().call(work, owner=owner, timeout=timeout)


async def test_check_that_ends_after_its_container_is_not_passed_on(tmp_path: Path, short_timeouts: None) -> None:
    calls = Gated()
    async with running(make(tmp_path, annotated(), calls=calls)) as env:
        env.begin()
        await env.polled()
        calls.gate.clear()
        asked = asyncio.create_task(env.source.still_hung(ME))
        await asyncio.sleep(0)  # it has found the watch
        env.events.stop(ME)
        async with asyncio.timeout(PATIENCE):
            await env.recorded.forgotten.get()
            checks = len(env.recorded.checks[ME])
            calls.gate.set()
            await asked
        assert len(env.recorded.checks[ME]) == checks


async def test_check_that_ends_after_a_restart_of_the_program_proves_nothing(
    tmp_path: Path, short_timeouts: None
) -> None:
    calls = Gated()
    async with running(make(tmp_path, annotated(), calls=calls)) as env:
        file = env.begin()
        await env.beats(file)
        calls.gate.clear()
        asked = asyncio.create_task(env.source.still_hung(ME))
        await asyncio.sleep(0)  # its check waits
        touch(file)
        env.source.restarted(ME)
        calls.gate.set()
        async with asyncio.timeout(PATIENCE):
            assert await asked != ""
        assert env.shown() is None
        assert set(await env.never_hangs()) == {None}


async def test_every_check_is_passed_on_with_the_containers_start(env: Env) -> None:
    env.runtime.started_at = 1_790_000_000_500_000_000
    file = env.begin()
    await env.polled()
    touch(file)
    await env.polled(2)
    first, *_, last = env.recorded.checks[ME]
    assert first.poll.result is Blank.ABSENT
    assert isinstance(last.poll.result, Mark)
    assert last.poll.result.modified == file.stat().st_mtime_ns
    assert last.started_at == 1_790_000_000.5
    env.events.stop(ME)
    async with asyncio.timeout(PATIENCE):
        assert await env.recorded.forgotten.get() == ME
