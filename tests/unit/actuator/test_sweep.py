"""When a restart cleans: once, after all of the old has ended, before anything new runs; and never for long."""

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.actuator.outcomes import Result
from agent.actuator.sweep import Broom, Patience, Sweep
from agent.model.workloads import ContainerState
from agent.restart import intents
from agent.restart.shm import NotOurs, Place
from common.own_process import OwnProcess
from tests.fakes import hanging_fs
from tests.fakes.own_threads import OwnThreads
from tests.fakes.proc_tree import ProcTree, container_id
from tests.unit.actuator import pod_rig
from tests.unit.actuator.conftest import Rig

PLACE = Place("/run/sandboxes/s/shm", "/kubepods/pod1")
CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")


@dataclass
class FakeBroom:
    """Notes when it was used: ``calls`` is what the runtime had been asked until then."""

    rig: Rig | None = None
    patience: Patience = field(default_factory=lambda: Patience(others=60.0))
    used: list[Place] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    async def empty(self, place: Place) -> str:
        self.used.append(place)
        if self.rig is not None:
            self.calls.append([method for method in self.rig.server.called() if method in CHANGES])
            assert self.rig.standbys is not None
            self.held.append(bool(self.rig.standbys.held))
        return "7 files removed"


def sweep(broom: FakeBroom, **wishes: Any) -> Sweep:
    return Sweep(broom, **{"places": [PLACE]} | wishes)  # type: ignore[arg-type]


async def test_it_is_done_once_however_often_a_start_is_tried() -> None:
    broom = FakeBroom()
    made = sweep(broom, places=[PLACE, PLACE])
    for _ in range(3):
        await made.before_start("trainer", is_first=True)
    assert broom.used == [PLACE]
    assert made.note == "/dev/shm: 7 files removed"


async def test_it_waits_for_the_last_of_the_old_containers() -> None:
    broom = FakeBroom()
    made = sweep(broom, waits_for=["a", "b"])
    first = asyncio.create_task(made.before_start("a", is_first=True))
    await asyncio.sleep(0)
    assert not first.done()
    assert broom.used == []
    await asyncio.gather(first, made.before_start("b", is_first=True))
    assert broom.used == [PLACE]


async def test_it_does_not_wait_for_ever_and_the_late_one_cleans_nothing() -> None:
    broom = FakeBroom(patience=Patience(others=0.01))
    made = sweep(broom, waits_for=["a", "b"])
    await made.before_start("a", is_first=True)
    await made.before_start("b", is_first=True)
    assert broom.used == []
    assert made.note == "/dev/shm: not emptied: b has not ended"


async def test_it_leaves_alone_what_a_container_of_kubelets_may_have_made() -> None:
    broom = FakeBroom()
    made = sweep(broom)
    await made.before_start("trainer", is_first=False)
    assert broom.used == []
    assert made.note == "/dev/shm: not emptied: a container of kubelet's has run already"


async def test_what_is_not_the_pods_own_is_left_alone_with_its_reason() -> None:
    broom = FakeBroom()
    made = sweep(broom, places=[NotOurs("it is the node's (hostIPC)"), PLACE])
    await made.before_start("trainer", is_first=True)
    assert made.note == "/dev/shm: not emptied: it is the node's (hostIPC); 7 files removed"


async def test_what_never_came_to_pass_is_said() -> None:
    assert sweep(FakeBroom()).note == "/dev/shm: not emptied: the successor did not wait for it"


ORDERS = [
    (intents.Order.STOP_FIRST, ["StopContainer", "CreateContainer"]),
    (intents.Order.CREATE_FIRST, ["CreateContainer", "StopContainer"]),
    (intents.Order.START_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
]


@pytest.mark.parametrize(("order", "before"), ORDERS)
async def test_a_swap_cleans_when_the_old_one_is_dead_and_the_new_one_does_not_run(
    rig: Rig, order: intents.Order, before: list[str]
) -> None:
    broom = FakeBroom(rig)
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(intent, material=await rig.material(intent, sweep=sweep(broom)))
    assert outcome.result is Result.SWAPPED
    assert broom.calls == [before]
    assert broom.held == [order is intents.Order.START_FIRST], "a successor that was started is held meanwhile"
    assert "clean" in outcome.phases


async def test_a_container_that_has_died_by_itself_is_cleaned_up_after_too(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    broom = FakeBroom(rig)
    intent = rig.intent()
    await rig.actuator().carry_out(intent, material=await rig.material(intent, sweep=sweep(broom)))
    assert broom.calls == [["CreateContainer"]]


async def test_where_kubelet_was_faster_nothing_is_cleaned_under_its_container(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent = rig.intent()
    broom = FakeBroom(rig)
    material = await rig.material(intent, sweep=sweep(broom))
    await rig.kubelet_creates(attempt=1)
    outcome = await rig.actuator().carry_out(intent, material=material)
    assert outcome.result is Result.ADOPTED
    assert broom.used == []


async def test_a_rerun_cleans_when_all_has_gone_before_the_first_init_container(rig: Rig) -> None:
    async with pod_rig.made(rig) as pod:
        broom = FakeBroom(rig)
        intent = pod.intent()
        materials = await pod.materials(intent, sweep=sweep(broom))
        rig.server.calls.clear()
        outcome = await pod.rerun().carry_out(intent, materials=materials)
        assert outcome.result is Result.RERUN
        (before,) = broom.calls
        assert before.count("RemoveContainer") == len(pod_rig.ROLES), "all of the old have gone"
        assert "StartContainer" not in before


async def test_a_rerun_that_kubelet_has_begun_itself_cleans_nothing(rig: Rig) -> None:
    async with pod_rig.made(rig) as pod:
        broom = FakeBroom(rig)
        intent = pod.intent()
        made = sweep(broom)
        materials = await pod.materials(intent, sweep=made)
        for container in pod.old.values():
            await rig.cri.remove_container(container)
        init = await pod.kubelet_starts("prepare", attempt=1)
        rig.server.runtime.exit(init, exit_code=0)
        outcome = await pod.rerun().carry_out(intent, materials=materials)
        assert outcome.result is Result.RERUN
        assert [view.ref.name for view in await pod.containers() if view.state is ContainerState.RUNNING]
        assert broom.used == []
        assert "a container of kubelet's has run already" in made.note


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[str]:
    """The socket of a runtime that is this process."""
    path = str(tmp_path / "cri.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield path


async def test_the_place_is_looked_up_where_the_runtime_sees_it(socket_path: str, tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    (tree.proc / str(os.getpid())).mkdir(parents=True)
    (tree.proc / str(os.getpid()) / "root").symlink_to("/")
    (tree.cgroups / "kubepods" / "pod1").mkdir(parents=True)
    (tree.cgroups / "kubepods" / "pod1" / "cgroup.procs").touch()
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "old").touch()
    broom = Broom(socket_path, calls=OwnThreads(), proc=tree.proc, cgroup_root=tree.cgroups)
    assert await broom.empty(Place(str(tmp_path / "shm"), "/kubepods/pod1")) == "1 files removed (0.0 MiB)"
    assert await broom.empty(PLACE) == f"not emptied: No such file or directory: {PLACE.directory}"


async def test_without_a_runtime_nothing_is_emptied() -> None:
    said = await Broom("/none.sock", calls=OwnThreads()).empty(PLACE)
    assert said.startswith("not emptied: the runtime behind /none.sock cannot be")


async def test_a_cleaning_that_hangs_is_left_behind(socket_path: str, tmp_path: Path) -> None:
    """A process of the pod has something open on a file system that nobody answers for."""
    tree = ProcTree(tmp_path)
    tree.run(container_id(1), pid=7)
    (tree.proc / str(os.getpid())).mkdir(parents=True)
    (tree.proc / str(os.getpid()) / "root").symlink_to("/")
    (tree.group(container_id(1)).parent / "cgroup.procs").touch()
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "old").touch()
    place = Place(str(tmp_path / "shm"), "/kubepods/pod1")
    async with OwnProcess("under test", cgroup_root=tmp_path) as calls:
        broom = Broom(socket_path, calls=calls, proc=tree.proc, cgroup_root=tree.cgroups, patience=Patience(work=3.0))
        await calls.call(os.getpid, who="nobody", timeout=60.0)  # it is there
        with hanging_fs.mounted(tmp_path / "mnt"):
            tree.opens(7, tmp_path / "mnt" / "file")
            assert await broom.empty(place) == "not emptied within 3 s"
            assert await broom.empty(place) == "not emptied: an earlier look has not come back yet"
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "old").touch()
            (tree.cgroups / "kubepods" / "pod2").mkdir()
            (tree.cgroups / "kubepods" / "pod2" / "cgroup.procs").touch()
            other = Place(str(tmp_path / "other"), "/kubepods/pod2")
            assert await broom.empty(other) == "1 files removed (0.0 MiB)", "another pod's goes on"
        assert (tmp_path / "shm" / "old").exists()
