"""An agent finds frozen containers at its start, on a cgroup file system of plain files."""

import asyncio
import errno
import os
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubemend.agent.actuator.hold import cgroups, exec_hold, standby
from kubemend.agent.actuator.hold import freezer as freezer_module
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import CriError, NotFound, RuntimeUnavailable
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files
from tests import eventually

CONTAINER = ContainerId("a" * 64)


@given(st.binary(max_size=16))
@example(b"runc:[2:INIT]")
@example(b"crun")
@example(b"crunch")
def test_process_has_begun_unless_it_has_the_runtimes_name(name: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        group = Path(directory, "group")
        for place in (group, Path(directory, "7")):
            place.mkdir()
        (group / "cgroup.procs").write_text("7\n8\n")  # 8 has ended
        (Path(directory) / "7" / "comm").write_bytes(name + b"\n")
        begun = freezer(Path(directory), proc=Path(directory))._has_begun(Cgroup(group))
        assert begun is (name not in {b"runc:[2:INIT]", b"crun"})


def test_container_of_many_processes_has_begun_whatever_their_names(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    for pid in range(17):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text("crun\n")
    for most, begun in ((16, False), (17, True)):
        (group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(most)))
        assert freezer(tmp_path, proc=tmp_path)._has_begun(Cgroup(group)) is begun


@pytest.mark.parametrize("mark", ["\x0b", "\r", "\x85", "\x1c"])
def test_process_name_does_not_make_it_first_of_namespace(mark: str) -> None:
    status = "Name:\t{}\nNSpid:\t4711\t{}\n"
    assert exec_hold._is_first_of_namespace(status.format("sh", 1))
    assert not exec_hold._is_first_of_namespace(status.format(f"{mark}NSpid:\t9\t1", 7))


@given(st.binary())
def test_any_status_text_is_parsed(status: bytes) -> None:
    exec_hold._is_first_of_namespace(kernel_files.text(status))


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A frozen container. Plain files have no trusted attributes, so its mark is kept in a file, too."""
    path = tmp_path / f"cri-containerd-{CONTAINER}.scope"
    path.mkdir()
    (path / "cgroup.freeze").write_text("1")
    (path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    monkeypatch.setattr(Cgroup, "mark", property(lambda group: (group.path / "mark").read_text()))
    monkeypatch.setattr(Cgroup, "put_mark", lambda group, text: (group.path / "mark").write_text(text))
    monkeypatch.setattr(cgroups, "marked", lambda _: [(CONTAINER, Cgroup(path), (path / "mark").read_text())])
    return path


class Infos:
    """A runtime that answers with an error."""

    def __init__(self, error: CriError) -> None:
        self.error = error

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        raise self.error


def freezer(
    root: Path, *, owner: str = "node-1 /run/c.sock", runtime: Any = None, proc: Path = Path("/proc")
) -> Freezer:
    nothing: Any = None
    return Freezer(runtime=runtime, holds=None, processes=nothing, proc=proc, cgroup_root=root, owner=owner)


@pytest.mark.parametrize("socket_is_there", [True, False])
async def test_mark_of_a_removed_socket_is_released(group: Path, socket_is_there: bool) -> None:
    """Otherwise a container whose agent has another socket now would be frozen indefinitely."""
    before = group.parent / "old.sock"
    if socket_is_there:
        before.touch()  # a neighbour, where nodes are simulated
    (group / "mark").write_text(f"held uid-1 node-1 {before}")
    found = await freezer(group.parent, owner="node-1 /run/new.sock").take_over(keep={})
    assert found == ({} if socket_is_there else {"uid-1": {CONTAINER: True}})
    assert (group / "cgroup.freeze").read_text() == ("1" if socket_is_there else "0")


async def test_container_of_another_node_is_left_alone(group: Path) -> None:
    (group / "mark").write_text("held uid-1 node-2 /run/no.sock")
    assert await freezer(group.parent, owner="node-1 /run/no.sock").take_over(keep={}) == {}
    assert (group / "cgroup.freeze").read_text() == "1"


async def test_container_is_thawed_despite_unwritable_mark(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "mark").write_text("held uid-1 node-1 /run/c.sock")

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Cgroup, "put_mark", refused)
    await freezer(group.parent, owner="node-1 /run/c.sock").take_over(keep={})
    assert (group / "cgroup.freeze").read_text() == "0"


@pytest.mark.parametrize(
    ("at_start", "held_again"), [(False, False), (False, True), (True, False)], ids=["released", "held-again", "start"]
)
async def test_container_that_cannot_be_thawed_now_is_thawed_later(
    group: Path, monkeypatch: pytest.MonkeyPatch, *, at_start: bool, held_again: bool
) -> None:
    """It bears the mark of a released one, so neither the next agent nor the last resort would thaw it."""
    held, fails, thaw = "held uid-1 node-1 /run/c.sock", [True, True], Cgroup.thaw

    def sometimes(cgroup: Cgroup) -> None:
        if fails:
            fails.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        thaw(cgroup)

    monkeypatch.setattr(freezer_module, "_THAWED_AGAIN", 0.0)
    monkeypatch.setattr(Cgroup, "thaw", sometimes)
    (group / "mark").write_text(held)
    this = freezer(group.parent)
    await this.take_over(keep={} if at_start else {"uid-1": 0.0})
    assert this.thaw(CONTAINER) is None
    if held_again:
        (group / "mark").write_text(held)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (group / "cgroup.freeze").read_text() == "1"
    else:
        await eventually.true(lambda: (group / "cgroup.freeze").read_text() == "0")


@pytest.mark.parametrize(("events", "runs"), [("populated 1\n", True), ("populated 0\n", False), (None, False)])
async def test_thaw_tells_whether_a_process_is_left(group: Path, events: str | None, runs: bool) -> None:
    (group / "mark").write_text("held uid-1 node-1 /run/c.sock")
    this = freezer(group.parent)
    await this.take_over(keep={"uid-1": 0.0})
    if events is None:
        (group / "cgroup.events").unlink()  # as in the cgroup of an ended container, which the runtime removes
    else:
        (group / "cgroup.events").write_text(events)
    assert this.thaw(CONTAINER) is runs
    assert this.thaw(CONTAINER) is None, "it holds the container no more"


@pytest.mark.parametrize("keep", [{}, {"uid-1": 100.0}])
async def test_one_that_was_marked_but_not_frozen_is_not_taken_for_frozen(group: Path, keep: dict[str, float]) -> None:
    """The agent was killed in between. If it were reported as frozen, it would run."""
    (group / "mark").write_text("held uid-1 node-1 /run/c.sock")
    (group / "cgroup.freeze").write_text("0")
    found = await freezer(group.parent, owner="node-1 /run/c.sock").take_over(keep=keep)
    assert found == ({} if keep else {"uid-1": {CONTAINER: True}})


@pytest.mark.parametrize(
    ("mark", "is_reported"),
    [
        ("released:99.5 uid-1 node-1 /run/c.sock", False),
        ("released:100.0 uid-1 node-1 /run/c.sock", True),
        ("released:when uid-1 node-1 /run/c.sock", True),
        ("released uid-1 node-1 /run/c.sock", True),
    ],
)
async def test_release_by_an_earlier_round_does_not_count_for_the_present_hold(
    group: Path, mark: str, is_reported: bool
) -> None:
    (group / "mark").write_text(mark)
    (group / "cgroup.freeze").write_text("0")
    found = await freezer(group.parent, owner="node-1 /run/c.sock").take_over(keep={"uid-1": 100.0})
    assert found == ({"uid-1": {CONTAINER: False}} if is_reported else {})
    assert (group / "mark").read_text() == mark, "the time of its release stays"


async def test_time_of_release_is_written_on_a_container_once(group: Path) -> None:
    (group / "mark").write_text("held uid-1 node-1 /run/c.sock")
    one = freezer(group.parent, owner="node-1 /run/c.sock")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert await one.take_over(keep={}) == {"uid-1": {CONTAINER: True}}
    written = (group / "mark").read_text()
    mark = cgroups.Mark.parse(written)
    assert mark.at is not None
    assert before <= mark.at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert mark == cgroups.Mark(cgroups.RELEASED, "uid-1", "node-1 /run/c.sock", mark.at)
    await one.take_over(keep={})
    assert (group / "mark").read_text() == written


async def test_one_that_the_runtime_does_not_know_any_more_needs_no_hold(tmp_path: Path) -> None:
    """It has ended, and kubelet has removed it: the member has not failed for that."""
    gone = Infos(NotFound("no such container", where="/run/c.sock", hint=""))
    assert await freezer(tmp_path, runtime=gone).freeze(CONTAINER, mark="uid-1") == 0.0
    away = Infos(RuntimeUnavailable("the socket does not answer", where="/run/c.sock", hint=""))
    with pytest.raises(HoldError):
        await freezer(tmp_path, runtime=away).freeze(CONTAINER, mark="uid-1")


async def test_container_released_during_freeze_stays_frozen_for_next_holder(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group / "cgroup.freeze").write_text("0")
    asked, answers = asyncio.Event(), asyncio.Event()

    async def find(*_: object, **__: object) -> Cgroup:
        if not asked.is_set():
            asked.set()
            await answers.wait()
        return Cgroup(group)

    monkeypatch.setattr(Freezer, "_find", find)
    one = freezer(group.parent)
    first, second = (HoldSet(one, mark=f"uid-{number}") for number in (1, 2))
    holding = [asyncio.create_task(first.hold(CONTAINER))]
    async with asyncio.timeout(60):
        await asked.wait()
        first.release()
        holding.append(asyncio.create_task(second.hold(CONTAINER)))
        await asyncio.sleep(0)  # it has called, too
        answers.set()
        await asyncio.gather(*holding)
    assert second.is_frozen(CONTAINER)
    assert (group / "cgroup.freeze").read_text() == "1"
    assert (group / "mark").read_text() == "held uid-2 node-1 /run/c.sock"


async def test_next_agent_leaves_container_frozen_by_swap_to_the_journal(group: Path) -> None:
    """If released, it would run next to its successor."""
    (group / "mark").write_text("replaced - node-1 /run/c.sock")
    assert await freezer(group.parent, owner="node-1 /run/c.sock").take_over(keep={}) == {}
    assert (group / "cgroup.freeze").read_text() == "1"


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        ("held uid-1 node-1 /run/c.sock", True),
        ("replaced - node-1 /run/c.sock", True),
        ("released uid-1 node-1 /run/c.sock", False),  # frozen by another agent since
        ("held uid-1 node-2 /run/none.sock", False),
        ("whatever", False),
    ],
)
def test_left_frozen_finds_container_by_mark_and_thaws_it(group: Path, mark: str, found: bool) -> None:
    (group / "mark").write_text(mark)
    one = freezer(group.parent, owner="node-1 /run/c.sock")
    assert one.left_frozen() == ({CONTAINER} if found else frozenset())
    one.thaw(CONTAINER)
    assert (group / "cgroup.freeze").read_text() == ("0" if found else "1")
    assert one.left_frozen() == frozenset()


@pytest.mark.parametrize(("frozen", "populated"), [("0", "1"), ("1", "0")])
def test_running_or_ended_container_is_not_left_frozen(group: Path, frozen: str, populated: str) -> None:
    (group / "mark").write_text("held uid-1 node-1 /run/c.sock")
    (group / "cgroup.freeze").write_text(frozen)
    (group / "cgroup.events").write_text(f"populated {populated}\nfrozen {frozen}\n")
    assert freezer(group.parent, owner="node-1 /run/c.sock").left_frozen() == frozenset()


@pytest.mark.parametrize(
    ("before", "frozen", "thawed"),
    [
        ("", "replaced - n /s", "released - n /s"),
        ("released uid-1 n /s", "replaced - n /s", "released - n /s"),
        ("held uid-1 n /s", "held uid-1 n /s", "held uid-1 n /s"),  # for a round, which releases it
    ],
)
def test_old_container_bears_a_mark_during_the_swap(group: Path, before: str, frozen: str, thawed: str) -> None:
    (group / "mark").write_text(before)
    (group / "cgroup.freeze").write_text("0")
    old = standby._Old(Cgroup(group), "n /s")
    old.freeze()
    assert ((group / "mark").read_text(), (group / "cgroup.freeze").read_text()) == (frozen, "1")
    old.thaw()
    assert ((group / "mark").read_text(), (group / "cgroup.freeze").read_text()) == (thawed, "0")


def test_old_container_is_frozen_despite_unwritable_mark(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "mark").write_text("")
    (group / "cgroup.freeze").write_text("0")

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Cgroup, "put_mark", refused)
    standby._Old(Cgroup(group), "n /s").freeze()
    assert (group / "cgroup.freeze").read_text() == "1"


class Statuses:
    """A runtime that shows a process that has ended, whose PID a process of another container has now."""

    async def container_status(self, container_id: ContainerId) -> Any:
        return SimpleNamespace(pid=os.getpid())


@pytest.fixture
def proc(group: Path) -> Path:
    """The host's procfs: this process is in the container of ``group``, which runs."""
    (group.parent / "cgroup.controllers").write_text("")
    (group / "cgroup.freeze").write_text("0")
    (group / "mark").write_text("")
    process = group.parent / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/{group.name}\n")
    return process.parent


async def test_round_freezes_no_container_that_has_a_reused_pid(
    group: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = freezer(group.parent, runtime=Statuses(), proc=proc)
    monkeypatch.setattr(one, "_is_there", lambda _: True)
    assert await one.freeze(ContainerId("b" * 64), mark="uid-1") == 0.0
    assert (group / "cgroup.freeze").read_text() == "0"


async def test_swap_freezes_and_thaws_no_container_that_has_a_reused_pid(group: Path, proc: Path) -> None:
    holds: Any = SimpleNamespace(at_most=1.0)
    standbys = standby.Standbys(holds=holds, proc=proc, cgroup_root=group.parent)
    with pytest.raises(standby.EndedError, match="has ended by itself"):
        standbys.freeze(os.getpid(), of=ContainerId("b" * 64))
    assert (group / "cgroup.freeze").read_text() == "0"
    standbys.freeze(os.getpid(), of=CONTAINER)
    standbys.thaw(os.getpid(), of=ContainerId("b" * 64))
    assert (group / "cgroup.freeze").read_text() == "1"


async def test_processes_of_a_container_are_read_beside_the_event_loop(
    group: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod chooses how many there are; other containers are held by what the loop answers."""
    for number in range(2):
        (proc / str(number)).mkdir()
        (proc / str(number) / "comm").write_text("trainer\n")
    (group / "cgroup.procs").write_text("0\n1\n")
    loop, answered = asyncio.get_running_loop(), threading.Event()
    found: list[bool] = []

    def facts(pid: int) -> ProcessFacts:
        loop.call_soon_threadsafe(answered.set)
        found.append(answered.wait(5.0))
        return ProcessFacts(pid=pid, container=CONTAINER, started=0.0)

    one = freezer(group.parent, runtime=Statuses(), proc=proc)
    monkeypatch.setattr(one, "_is_there", lambda _: True)
    monkeypatch.setattr(one, "_processes", SimpleNamespace(facts=facts))
    assert await one.freeze(CONTAINER, mark="uid-1") > 0.0
    assert found == [True, True]
