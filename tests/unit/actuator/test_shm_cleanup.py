"""When a restart cleans: once, after all old containers have ended, before anything new runs; with a timeout."""

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.shm_cleanup import ShmCleaner, ShmCleanup, Timeouts
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.restart import intents
from kubemend.agent.restart.shm import NotOurs, Place, Request
from kubemend.common import contained
from kubemend.common.side_process import SideProcess
from tests.environments import pod_env
from tests.environments.runtime import CriEnv
from tests.fakes import hanging_fs
from tests.fakes.calls_in_threads import CallsInThreads
from tests.fakes.proc_tree import ProcTree, container_id

PLACE = Place("/run/sandboxes/s/shm", "/kubepods/pod1")
CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")


@dataclass
class FakeShmCleaner:
    """Records when it was used: ``calls`` are the runtime's calls until then."""

    cri_env: CriEnv | None = None
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(others=60.0))
    used: list[Place] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    async def empty(self, place: Place) -> str:
        self.used.append(place)
        if self.cri_env is not None:
            self.calls.append([method for method in self.cri_env.server.called() if method in CHANGES])
            assert self.cri_env.standbys is not None
            self.held.append(bool(self.cri_env.standbys.held))
        return "7 files removed"


def shm_cleanup(shm_cleaner: FakeShmCleaner, *places: Place | NotOurs, waits_for: tuple[str, ...] = ()) -> ShmCleanup:
    return ShmCleanup(shm_cleaner, Request(places or (PLACE,), waits_for))  # type: ignore[arg-type]


async def test_repeated_start_cleans_once() -> None:
    shm_cleaner = FakeShmCleaner()
    made = shm_cleanup(shm_cleaner, PLACE, PLACE)
    for _ in range(3):
        await made.before_start("trainer", is_first=True)
    assert shm_cleaner.used == [PLACE]
    assert made.note == "/dev/shm: 7 files removed"


async def test_cleanup_waits_for_the_last_old_container() -> None:
    shm_cleaner = FakeShmCleaner()
    made = shm_cleanup(shm_cleaner, waits_for=("a", "b"))
    first = asyncio.create_task(made.before_start("a", is_first=True))
    await asyncio.sleep(0)
    assert not first.done()
    assert shm_cleaner.used == []
    await asyncio.gather(first, made.before_start("b", is_first=True))
    assert shm_cleaner.used == [PLACE]


async def test_cleanup_wait_times_out_and_cleans_nothing() -> None:
    shm_cleaner = FakeShmCleaner(timeouts=Timeouts(others=0.01))
    made = shm_cleanup(shm_cleaner, waits_for=("a", "b"))
    await made.before_start("a", is_first=True)
    await made.before_start("b", is_first=True)
    assert shm_cleaner.used == []
    assert made.note == "/dev/shm: not emptied: b has not ended"


async def test_files_of_kubelets_container_are_left() -> None:
    shm_cleaner = FakeShmCleaner()
    made = shm_cleanup(shm_cleaner)
    await made.before_start("trainer", is_first=False)
    assert shm_cleaner.used == []
    assert made.note == "/dev/shm: not emptied: kubelet's container has run already"


async def test_directory_of_another_owner_is_left_with_a_reason() -> None:
    shm_cleaner = FakeShmCleaner()
    made = shm_cleanup(shm_cleaner, NotOurs("it is the node's (hostIPC)"), PLACE)
    await made.before_start("trainer", is_first=True)
    assert made.note == "/dev/shm: not emptied: it is the node's (hostIPC); 7 files removed"


async def test_skipped_cleanup_is_reported() -> None:
    assert shm_cleanup(FakeShmCleaner()).note == "/dev/shm: not emptied: the successor did not wait for it"


RESERVES = "CreateContainer"  # a container that is never started
ORDERS = [
    (intents.SwapOrder.STOP_FIRST, [RESERVES, "StopContainer", "CreateContainer"]),
    (intents.SwapOrder.CREATE_FIRST, [RESERVES, "CreateContainer", "StopContainer"]),
    (intents.SwapOrder.START_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
    (intents.SwapOrder.START_ELSE_STOP_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
]


@pytest.mark.parametrize(("order", "before"), ORDERS)
async def test_swap_cleans_between_old_death_and_successor_run(
    cri_env: CriEnv, order: intents.SwapOrder, before: list[str]
) -> None:
    shm_cleaner = FakeShmCleaner(cri_env)
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(
        intent,
        successor_spec=await cri_env.successor_spec(intent),
        preparation=StartPreparation(shm_cleanup(shm_cleaner)),
    )
    assert outcome.result is Result.SWAPPED
    assert shm_cleaner.calls == [before]
    assert shm_cleaner.held == [order.starts_first], "a successor that was started is held until then"
    assert "clean" in outcome.phases


async def test_container_that_ended_by_itself_is_cleaned_up(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    shm_cleaner = FakeShmCleaner(cri_env)
    intent = cri_env.intent()
    await cri_env.actuator().carry_out(
        intent,
        successor_spec=await cri_env.successor_spec(intent),
        preparation=StartPreparation(shm_cleanup(shm_cleaner)),
    )
    assert shm_cleaner.calls == [["CreateContainer"] * 2], "one of them only takes the next name"


async def test_nothing_is_cleaned_under_kubelets_container(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent = cri_env.intent()
    shm_cleaner = FakeShmCleaner(cri_env)
    successor_spec = await cri_env.successor_spec(intent)
    await cri_env.kubelet_creates(attempt=1)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, preparation=StartPreparation(shm_cleanup(shm_cleaner))
    )
    assert outcome.result is Result.ADOPTED
    assert shm_cleaner.used == []


async def test_rerun_cleans_before_the_first_init_container(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env) as pod:
        shm_cleaner = FakeShmCleaner(cri_env)
        intent = pod.intent()
        successor_specs = await pod.successor_specs(intent)
        cri_env.server.calls.clear()
        preparation = StartPreparation(shm_cleanup(shm_cleaner))
        outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs, preparation=preparation)
        assert outcome.result is Result.RERUN
        (before,) = shm_cleaner.calls
        assert before.count("RemoveContainer") == len(pod_env.ROLES), "all of the old have gone"
        assert "StartContainer" not in before


async def test_rerun_begun_by_kubelet_cleans_nothing(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env) as pod:
        shm_cleaner = FakeShmCleaner(cri_env)
        intent = pod.intent()
        made = shm_cleanup(shm_cleaner)
        successor_specs = await pod.successor_specs(intent)
        for container in pod.old.values():
            await cri_env.cri.remove_container(container)
        init = await pod.kubelet_starts("prepare", attempt=1)
        cri_env.server.runtime.exit(init, exit_code=0)
        outcome = await pod.actuator().carry_out(
            intent, successor_specs=successor_specs, preparation=StartPreparation(made)
        )
        assert outcome.result is Result.RERUN
        assert [view.ref.name for view in await pod.containers() if view.state is ContainerState.RUNNING]
        assert shm_cleaner.used == []
        assert "kubelet's container has run already" in made.note


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[str]:
    """The socket of a runtime that is this process."""
    path = str(tmp_path / "cri.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield path


async def test_place_is_resolved_as_the_runtime_sees_it(socket_path: str, tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    (tree.proc / str(os.getpid())).mkdir(parents=True)
    (tree.proc / str(os.getpid()) / "root").symlink_to("/")
    (tree.cgroups / "kubepods" / "pod1").mkdir(parents=True)
    (tree.cgroups / "kubepods" / "pod1" / "cgroup.procs").touch()
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "old").touch()
    shm_cleaner = ShmCleaner(socket_path, calls=CallsInThreads(), proc=tree.proc, cgroup_root=tree.cgroups)
    assert await shm_cleaner.empty(Place(str(tmp_path / "shm"), "/kubepods/pod1")) == "1 files removed (0.0 MiB)"
    assert await shm_cleaner.empty(PLACE) == f"not emptied: No such file or directory: {PLACE.directory}"


async def test_nothing_is_emptied_without_a_runtime() -> None:
    said = await ShmCleaner("/none.sock", calls=CallsInThreads()).empty(PLACE)
    assert said.startswith("not emptied: the runtime behind /none.sock cannot be")


async def test_internal_error_of_a_cleanup_is_contained_and_counted() -> None:
    class Broken(CallsInThreads):
        async def call(self, *_: Any, **__: Any) -> Any:
            raise ValueError("a defect")

    before = contained.count()
    said = await ShmCleaner("/none.sock", calls=Broken()).empty(PLACE)
    assert said.startswith("not emptied: internal error (ValueError in ")
    assert contained.count() == before + 1


async def test_hanging_cleanup_is_abandoned(socket_path: str, tmp_path: Path) -> None:
    """A process of the pod has a file open on a file system that does not answer."""
    tree = ProcTree(tmp_path)
    tree.run(container_id(1), pid=7)
    (tree.proc / str(os.getpid())).mkdir(parents=True)
    (tree.proc / str(os.getpid()) / "root").symlink_to("/")
    (tree.group(container_id(1)).parent / "cgroup.procs").touch()
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "old").touch()
    place = Place(str(tmp_path / "shm"), "/kubepods/pod1")
    async with SideProcess("under test", cgroup_root=tmp_path) as calls:
        shm_cleaner = ShmCleaner(
            socket_path, calls=calls, proc=tree.proc, cgroup_root=tree.cgroups, timeouts=Timeouts(work=3.0)
        )
        await calls.call(os.getpid, owner="other", timeout=60.0)  # the worker process runs
        with hanging_fs.mounted(tmp_path / "mnt"):
            tree.opens(7, tmp_path / "mnt" / "file")
            assert await shm_cleaner.empty(place) == "not emptied within 3 s"
            assert await shm_cleaner.empty(place) == "not emptied: an earlier call has not returned yet"
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "old").touch()
            (tree.cgroups / "kubepods" / "pod2").mkdir()
            (tree.cgroups / "kubepods" / "pod2" / "cgroup.procs").touch()
            other = Place(str(tmp_path / "other"), "/kubepods/pod2")
            assert await shm_cleaner.empty(other) == "1 files removed (0.0 MiB)", "another pod's cleanup continues"
        assert (tmp_path / "shm" / "old").exists()
