"""When a restart empties a cache: once, after the old container has ended, before the new one runs; never fails."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.actuator.cache_cleanup import DOCUMENT, CacheCleaner, CacheCleanup, Emptying, Result, Timeouts
from kubemend.agent.actuator.cache_removal import Removed
from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.model import outcomes
from kubemend.agent.restart import intents
from kubemend.agent.restart.cache import Place, Request, Volume
from kubemend.common import contained
from kubemend.common.pb.runtime.v1 import api_pb2
from kubemend.common.side_process import Calls, SideProcess
from tests import eventually
from tests.environments import pod_env
from tests.environments.runtime import TARGET, CriEnv
from tests.fakes import hanging_fs
from tests.fakes.calls_in_threads import CallsInThreads

PLACE = Place(Volume("/var/lib/kubelet/pods", "uid-1/volumes/kubernetes.io~empty-dir/kubemend-cache"), "trainer")
EMPTIED = Emptying(Result.EMPTIED, "7 files removed")
CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")


@dataclass
class FakeCleaner:
    """Records when it was used: ``calls`` are the runtime's calls until then, ``running`` the containers."""

    cri_env: CriEnv | None = None
    emptying: Emptying = EMPTIED
    used: list[Place] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    running: list[list[str]] = field(default_factory=list)

    async def empty(self, place: Place) -> Emptying:
        self.used.append(place)
        if self.cri_env is not None:
            self.calls.append([method for method in self.cri_env.server.called() if method in CHANGES])
            assert self.cri_env.standbys is not None
            self.held.append(bool(self.cri_env.standbys.held))
            containers = self.cri_env.server.runtime.containers.values()
            running = [each for each in containers if each.state == api_pb2.CONTAINER_RUNNING]
            self.running.append(sorted(each.config.metadata.name for each in running))
        return self.emptying


def preparation(cleaner: FakeCleaner) -> StartPreparation:
    return StartPreparation(emptyings={PLACE.container: cleanup(cleaner)})


def cleanup(cleaner: FakeCleaner | CacheCleaner) -> CacheCleanup:
    return CacheCleanup(cleaner, Request(PLACE, early_failures=2))  # type: ignore[arg-type]


# ---- in the course of a restart ----


async def test_repeated_start_empties_once() -> None:
    cleaner = FakeCleaner()
    made = cleanup(cleaner)
    for _ in range(3):
        await made.before_start()
    assert cleaner.used == [PLACE]


@pytest.mark.parametrize(
    ("emptying", "note"),
    [
        (
            EMPTIED,
            "cache of trainer emptied after 2 early failures (7 files removed)",
        ),
        (Emptying(Result.NOT_EMPTIED, "it is away"), "cache of trainer not emptied after 2 early failures: it is away"),
        (Emptying(Result.NOTHING_THERE), ""),
    ],
)
async def test_result_is_reported(emptying: Emptying, note: str) -> None:
    made = cleanup(FakeCleaner(emptying=emptying))
    assert made.note == "cache of trainer not emptied after 2 early failures: the successor did not wait for it"
    await made.before_start()
    assert made.note == note


RESERVES = "CreateContainer"  # a container that is never started
ORDERS = [
    (intents.SwapOrder.STOP_FIRST, [RESERVES, "StopContainer", "CreateContainer"]),
    (intents.SwapOrder.CREATE_FIRST, [RESERVES, "CreateContainer", "StopContainer"]),
    (intents.SwapOrder.START_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
    (intents.SwapOrder.START_ELSE_STOP_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
]


@pytest.mark.parametrize(("order", "before"), ORDERS)
async def test_swap_empties_between_old_death_and_successor_run(
    cri_env: CriEnv, order: intents.SwapOrder, before: list[str]
) -> None:
    cleaner = FakeCleaner(cri_env)
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent), preparation=preparation(cleaner)
    )
    assert outcome.result is outcomes.Result.SWAPPED
    assert cleaner.calls == [before]
    assert cleaner.held == [order.starts_first], "a successor that was started is held until then"
    assert "clean" in outcome.phases


async def test_failure_does_not_stop_the_restart(cri_env: CriEnv) -> None:
    cleaner = FakeCleaner(cri_env, emptying=Emptying(Result.NOT_EMPTIED, "it is away"))
    intent = cri_env.intent()
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent), preparation=preparation(cleaner)
    )
    assert outcome.result is outcomes.Result.SWAPPED


async def test_nothing_is_emptied_under_kubelets_container(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent = cri_env.intent()
    cleaner = FakeCleaner(cri_env)
    successor_spec = await cri_env.successor_spec(intent)
    await cri_env.kubelet_creates(attempt=1)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, preparation=preparation(cleaner)
    )
    assert outcome.result is outcomes.Result.ADOPTED
    assert cleaner.used == []


async def test_rerun_empties_before_the_container_itself_runs(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env) as pod:
        cleaner = FakeCleaner(cri_env)
        intent = pod.intent()
        successor_specs = await pod.successor_specs(intent)
        cri_env.server.calls.clear()
        outcome = await pod.actuator().carry_out(
            intent, successor_specs=successor_specs, preparation=preparation(cleaner)
        )
        assert outcome.result is outcomes.Result.RERUN
        (running,) = cleaner.running
        assert TARGET.name not in running, "the old one has gone, and the new one does not run yet"


# ---- an agent that dies, at any call ----


class AgentDiesError(Exception):
    """Ends a restart at some call."""


@dataclass
class Mortal:
    """Passes calls on to the runtime, and dies at one of the changes: before it takes effect, or ``after``."""

    cri_env: CriEnv
    left: int
    after: bool

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Any] = getattr(self.cri_env.cri, name)
        if name not in ("stop_container", "create_container", "start_container", "remove_container"):
            return call
        return partial(self._change, call)

    async def _change(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise AgentDiesError
        answer = await call(*arguments, **named)
        if self.left < 0:
            raise AgentDiesError
        return answer


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("calls", range(3))
@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
async def test_replay_empties_unless_the_successor_has_run(
    cri_env: CriEnv, order: intents.SwapOrder, calls: int, *, after: bool
) -> None:
    """The cache is emptied at least once in all, and never when a successor may have written to it."""
    intent = cri_env.intent(order=order, empty_cache_after=2)
    cleaner = FakeCleaner(cri_env)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.calls.clear()
    dying = SwapActuator(replace(cri_env.tools(), runtime=Mortal(cri_env, calls, after)))
    with pytest.raises(AgentDiesError):
        await dying.carry_out(intent, successor_spec=successor_spec, preparation=preparation(cleaner))
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, preparation=preparation(cleaner)
    )
    assert outcome.result is outcomes.Result.SWAPPED
    assert cleaner.calls
    assert not [before for before in cleaner.calls if "StartContainer" in before]


# ---- on the node ----


@dataclass
class Documents:
    """The journal; ``full`` if it cannot be written."""

    kept: dict[str, str] = field(default_factory=dict)
    full: bool = False

    async def load(self, key: str) -> str | None:
        return self.kept.get(key)

    async def save(self, key: str, body: str) -> None:
        if self.full:
            raise JournalError("the disk is full")
        self.kept[key] = body

    def volumes(self) -> list[list[str]]:
        found: list[list[str]] = json.loads(self.kept[DOCUMENT])
        return found


@dataclass
class Node:
    """A node whose runtime is this process, and a pod with a cache."""

    socket_path: str
    proc: Path
    place: Place
    directory: Path
    documents: Documents = field(default_factory=Documents)
    counted: list[Result] = field(default_factory=list)

    def cleaner(self, calls: Calls | None = None, **changes: Any) -> CacheCleaner:
        known: dict[str, Any] = {
            "calls": calls if calls is not None else CallsInThreads(),
            "documents": self.documents,
            "proc": self.proc,
            "count": self.counted.append,
        }
        return CacheCleaner(self.socket_path, **known | changes)

    @property
    def known(self) -> list[str]:
        return [self.place.volume.pods, self.place.volume.path]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    directory = tmp_path / "pods" / PLACE.volume.path
    (directory / "trainer" / "triton").mkdir(parents=True)
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "root").symlink_to("/")
    path = str(tmp_path / "cri.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        place = Place(Volume(str(tmp_path / "pods"), PLACE.volume.path), "trainer")
        yield Node(path, tmp_path / "proc", place, directory)


@asynccontextmanager
async def at_work(cleaner: CacheCleaner) -> AsyncIterator[None]:
    """Remove remains in the background, for the length of the block."""
    work = asyncio.create_task(cleaner.run(), name="remains")
    yield
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def test_emptied_cache_is_counted_and_remembered_until_it_is_removed(node: Node) -> None:
    cleaner = node.cleaner()
    assert await cleaner.empty(node.place) == Emptying(Result.EMPTIED, "2 files removed")
    assert names(node.directory) == set()
    assert node.documents.volumes() == [node.known]
    async with at_work(cleaner):
        await eventually.true(lambda: node.documents.volumes() == [])
    assert node.counted == [Result.EMPTIED]


async def test_container_without_a_cache_has_nothing_there(node: Node) -> None:
    cleaner = node.cleaner()
    await cleaner.empty(node.place)
    assert await cleaner.empty(node.place) == Emptying(Result.NOTHING_THERE)


async def test_remains_of_a_previous_agent_are_removed(node: Node) -> None:
    (node.directory / ".kubemend-emptied-0123" / "triton").mkdir(parents=True)
    node.documents.kept[DOCUMENT] = json.dumps([node.known, ["/gone/pods", "uid-2/volume"]])
    async with at_work(node.cleaner()):
        await eventually.true(lambda: node.documents.volumes() == [])
    assert names(node.directory) == {"trainer"}
    assert node.counted == []


async def test_emptying_before_the_remains_are_read_keeps_them_known(node: Node) -> None:
    """A replay may be faster than the start of the component."""
    node.documents.kept[DOCUMENT] = json.dumps([["/var/lib/kubelet/pods", "uid-2/volume"]])
    await node.cleaner().empty(node.place)
    assert sorted(node.documents.volumes()) == sorted([["/var/lib/kubelet/pods", "uid-2/volume"], node.known])


@pytest.mark.parametrize("text", ["{", "[[1]]", "[1]", "null", '{"a": 1}'])
async def test_unreadable_document_does_not_keep_caches_from_being_emptied(node: Node, text: str) -> None:
    node.documents.kept[DOCUMENT] = text
    assert (await node.cleaner().empty(node.place)).result is Result.EMPTIED


async def test_full_journal_does_not_keep_the_cache_from_being_emptied(node: Node) -> None:
    node.documents.full = True
    cleaner = node.cleaner()
    assert (await cleaner.empty(node.place)).result is Result.EMPTIED


async def test_agent_without_access_empties_nothing() -> None:
    said = await CacheCleaner().empty(PLACE)
    assert said == Emptying(Result.NOT_EMPTIED, "this agent has no access to it")


async def test_failure_is_counted_with_its_reason(node: Node) -> None:
    said = await replace(node, socket_path="/none.sock").cleaner().empty(node.place)
    assert said == Emptying(Result.NOT_EMPTIED, "No such file or directory")
    assert node.counted == [Result.NOT_EMPTIED]
    assert names(node.directory) == {"trainer"}


async def test_internal_error_is_contained_and_counted(node: Node) -> None:
    class Broken(CallsInThreads):
        async def call(self, *_: Any, **__: Any) -> Any:
            raise ValueError("a defect")

    before = contained.count()
    said = await node.cleaner(Broken()).empty(node.place)
    assert said.result is Result.NOT_EMPTIED
    assert said.text.startswith("internal error (ValueError in ")
    assert contained.count() == before + 1


async def test_hanging_file_system_is_abandoned(node: Node, tmp_path: Path) -> None:
    async with SideProcess("under test", cgroup_root=tmp_path) as calls:
        await calls.call(os.getpid, owner="other", timeout=60.0)  # the worker process runs
        (tmp_path / "mnt").mkdir()
        with hanging_fs.mounted(tmp_path / "mnt"):
            hangs = replace(node.place, volume=replace(node.place.volume, pods=str(tmp_path / "mnt" / "pods")))
            cleaner = node.cleaner(calls, timeouts=Timeouts(work=3.0))
            assert await cleaner.empty(hangs) == Emptying(Result.NOT_EMPTIED, "it took more than 3 s")
            other = replace(node.place, volume=Volume(node.place.volume.pods, f"./{node.place.volume.path}"))
            assert (await cleaner.empty(other)).result is Result.EMPTIED, "another pod's goes on"


@dataclass
class Scripted:
    """Answers calls from a script, by the owner of the volume."""

    answers: dict[str, list[Any]]
    asked: list[str] = field(default_factory=list)

    async def call(self, work: Callable[[], Any], *, owner: str, timeout: float) -> Any:
        self.asked.append(owner)
        answer = self.answers[owner].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None: ...


def unfinished(node: Node, *volumes: str) -> None:
    node.documents.kept[DOCUMENT] = json.dumps([["/pods", each] for each in volumes])


async def test_large_remains_are_removed_in_turns_with_others(node: Node) -> None:
    unfinished(node, "a", "b")
    some = Removed(entries=100, cut_short=True)
    calls = Scripted({"remains a": [some, some, Removed(entries=1)], "remains b": [Removed()]})
    async with at_work(node.cleaner(calls)):
        await eventually.true(lambda: node.documents.volumes() == [])
    assert calls.asked == ["remains a", "remains b", "remains a", "remains a"]
    assert node.counted == []


@pytest.mark.parametrize(
    "answer",
    [
        Removed(entries=3, left=["'kernel': Operation not permitted"]),
        Removed(cut_short=True),
        TimeoutError(),
        OSError(5, "Input/output error"),
        ValueError("a defect"),
    ],
    ids=["left", "no progress", "hangs", "fails", "defect"],
)
async def test_remains_that_cannot_be_removed_are_given_up_and_counted(node: Node, answer: Any) -> None:
    unfinished(node, "a")
    async with at_work(node.cleaner(Scripted({"remains a": [answer]}))):
        await eventually.true(lambda: node.documents.volumes() == [])
    assert node.counted == [Result.NOT_REMOVED]


async def test_remains_that_grow_are_given_up(node: Node) -> None:
    unfinished(node, "a")
    calls = Scripted({"remains a": [Removed(entries=100, cut_short=True)] * 2})
    async with at_work(node.cleaner(calls, timeouts=Timeouts(remains=0.0))):
        await eventually.true(lambda: node.documents.volumes() == [])
    assert node.counted == [Result.NOT_REMOVED]
