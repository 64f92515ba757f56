"""What a restart keeps of the writable layer, and what it reports about that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.layer_keeping import LayerKeeper, LayerKeeping
from kubemend.agent.actuator.layer_moves import ABSENT, KEPT
from kubemend.agent.clients.containerd.snapshots import SnapshotError
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerRole
from kubemend.agent.restart import intents, keep
from kubemend.agent.restarts import plan_execution, planning
from kubemend.common import contained
from tests.environments.restarts import NOW, RestartEnv
from tests.fakes.standbys import HELD_PROCESS

SNAPSHOT = keep.Snapshot("overlayfs", "old")
OLD, NEW, PLACE = ContainerId("old"), ContainerId("new"), ContainerId("reserved")


class FakeKeeper:
    """Records what it was asked to move, and to which process of a successor that was started."""

    def __init__(self, moved: Mapping[str, str] | keep.NotKept) -> None:
        self.moved = moved
        self.used: list[tuple[str, ...]] = []
        self.between: list[tuple[ContainerId, ContainerId]] = []
        self.held: list[int | None] = []

    async def move(
        self, old: ContainerId, new: ContainerId, paths: Sequence[str], *, held: int | None = None
    ) -> Mapping[str, str] | keep.NotKept:
        self.held.append(held)
        self.between.append((old, new))
        self.used.append(tuple(paths))
        return self.moved


def keeping(keeper: FakeKeeper, *paths: str, mount_points: tuple[str, ...] | None = (), **named: Any) -> LayerKeeping:
    request = keep.Request("main", paths, OLD, mount_points, **named)
    return LayerKeeping(keeper, request)  # type: ignore[arg-type]


async def test_result_is_reported_for_each_path() -> None:
    keeper = FakeKeeper({"/a": KEPT, "/b": KEPT, "/c": ABSENT})
    made = keeping(keeper, "/a", "/b", "/c", "/vol/x", mount_points=("/vol",))
    assert made.note == "main keeps nothing of /a, /b, /c, /vol/x: this agent did not start the successor"
    await made.before_start(NEW)
    assert keeper.used == [("/a", "/b", "/c")]
    assert made.note == (
        "main keeps /a, /b; main does not keep /c: the old container did not change it; "
        "main does not keep /vol/x: it belongs to the mount at /vol, not to the container's own files"
    )


async def test_failure_is_reported_for_each_path() -> None:
    made = keeping(FakeKeeper(keep.NotKept("why")), "/a", "/b")
    await made.before_start(NEW)
    assert made.note == "main does not keep /a: why; main does not keep /b: why"


@pytest.mark.parametrize("named", [{"refused": "why"}, {"mount_points": None}])
async def test_nothing_is_moved_if_refused_or_if_the_mounts_are_unknown(named: dict[str, Any]) -> None:
    keeper = FakeKeeper({})
    made = keeping(keeper, "/a", **named)
    await made.before_start(NEW)
    assert keeper.used == []
    assert "/a: " in made.note


async def test_note_is_bounded() -> None:
    made = keeping(FakeKeeper(keep.NotKept("x" * 4000)), "/a")
    await made.before_start(NEW)
    assert len(made.note) == 2000


async def test_agent_without_access_reports_that() -> None:
    assert await LayerKeeper().move(OLD, NEW, ["/a"]) == keep.NotKept("this agent has no access to it")


class Outside:
    """The runtime: names of snapshots, and no answer about their mounts."""

    def __init__(
        self, error: Exception | None, snapshot: keep.Snapshot | None = SNAPSHOT, root: str | None = None
    ) -> None:
        self.error = error
        self.snapshot = snapshot
        self.root = root

    async def call(self, work: Callable[[], Any], **_: Any) -> Any:
        return work()

    async def container_status(self, container_id: ContainerId) -> "Outside":
        del container_id
        return self

    async def mounts(self, snapshot: keep.Snapshot) -> Sequence[keep.Mount]:
        del snapshot
        if self.error is not None:
            raise self.error
        return ()


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        (Outside(SnapshotError("unknown service")), "unknown service"),
        (Outside(None), "the snapshotter's root is nothing, not an overlay"),
        (Outside(None, snapshot=None), keep.NO_DIRECTORY),
        (Outside(None, snapshot=None, root="/s/1/merged"), "No such file or directory"),
    ],
)
async def test_runtime_without_an_answer_is_a_reason(runtime: Any, reason: str) -> None:
    keeper = LayerKeeper("/nowhere.sock", calls=runtime, snapshots=runtime, statuses=runtime)
    assert await keeper.move(OLD, NEW, ["/a"]) == keep.NotKept(reason)


async def test_internal_error_is_a_reason_and_counted() -> None:
    runtime: Any = Outside(RuntimeError("internal"))
    counted = contained.count()
    moved = await LayerKeeper(calls=runtime, snapshots=runtime, statuses=runtime).move(OLD, NEW, ["/a"])
    assert isinstance(moved, keep.NotKept)
    assert moved.reason.startswith("internal error (RuntimeError in ")
    assert contained.count() == counted + 1


async def test_error_that_concerns_the_whole_agent_is_not_contained() -> None:
    runtime: Any = Outside(MemoryError())
    with pytest.raises(MemoryError):
        await LayerKeeper(calls=runtime, snapshots=runtime, statuses=runtime).move(OLD, NEW, ["/a"])


@pytest.fixture
def keeper(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> FakeKeeper:
    fake = FakeKeeper({"/a": KEPT})
    monkeypatch.setattr(env.dependencies.actuators.tools.layers, "move", fake.move)
    return fake


async def test_reset_reports_why_it_keeps_nothing(env: RestartEnv, keeper: FakeKeeper) -> None:
    condition = await env.ask(strategy="reset", keep="/a")
    assert condition.status is ConditionStatus.TRUE
    assert keep.KUBELET in condition.message
    assert keeper.used == []


async def test_rerun_keeps_paths_in_a_reservation_while_the_old_container_is_removed(
    env: RestartEnv, keeper: FakeKeeper
) -> None:
    old = env.pod.old["trainer"]
    condition = await env.ask(strategy="rerun", keep="/a")
    assert condition.status is ConditionStatus.TRUE
    assert "trainer keeps /a" in condition.message
    of_trainer = next(each for each in keeper.between if each[0] == old)
    (onwards,) = [each for each in keeper.between if each[0] == of_trainer[1]]
    newest = [view for view in await env.pod.containers() if view.ref.name == "trainer"]
    assert onwards[1] == newest[-1].id
    assert keep.INIT in condition.message


async def test_only_parked_paths_are_moved_on() -> None:
    keeper = FakeKeeper({"/a": KEPT, "/b": "why"})
    made = keeping(keeper, "/a", "/b")
    await made.park(PLACE)
    keeper.moved = {"/a": KEPT}
    await made.before_start(NEW)
    assert keeper.between == [(OLD, PLACE), (PLACE, NEW)]
    assert keeper.used == [("/a", "/b"), ("/a",)]
    assert made.note == "main keeps /a; main does not keep /b: why"


@pytest.mark.parametrize("current", [{}, {"main": ContainerId("kubelets")}])
async def test_paths_that_stay_in_the_reservation_are_not_reported_as_kept(current: dict[str, ContainerId]) -> None:
    """Kubelet makes the new container if the agent cannot, or is slower."""
    made = keeping(FakeKeeper({"/a": KEPT, "/b": "why"}), "/a", "/b")
    await made.park(PLACE)
    StartPreparation(kept={"main": made}).replaced_by(current)
    assert made.note == f"main does not keep /a: {keep.KUBELET}; main does not keep /b: why"


@pytest.mark.parametrize(
    ("role", "is_restarted", "reason"),
    [
        (ContainerRole.MAIN, True, ""),
        (ContainerRole.SIDECAR, True, ""),
        (ContainerRole.MAIN, False, keep.FINAL_EXIT),
        (ContainerRole.INIT, True, keep.INIT),
    ],
)
def test_rerun_keeps_nothing_where_an_end_could_be_final(role: ContainerRole, is_restarted: bool, reason: str) -> None:
    assert keep.obstacle_of_rerun(role=role, exit_is_restarted=is_restarted) == reason


@pytest.mark.parametrize("order", intents.SwapOrder)
async def test_resumed_swap_keeps_what_its_order_allows(
    env: RestartEnv, keeper: FakeKeeper, order: intents.SwapOrder
) -> None:
    view = next(iter(env.pod.pods.pods().values()))
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/keep": "/a"}))
    plan = await planning.resume(env.dependencies, env.pod.cri_env.intent(created_at=NOW, order=order))
    (spec,) = plan.specs.values()
    assert spec.keeping is not None
    assert spec.keeping.refused == ""
    assert plan.bare().specs == {}
    outcome = await plan_execution.execution_of(env.dependencies, plan).carry_out()
    assert outcome.notes == ("trainer keeps /a",)
    assert keeper.held == [HELD_PROCESS if order.starts_first else None]


async def test_paths_are_copied_once_to_each_successor() -> None:
    keeper = FakeKeeper({"/a": KEPT})
    made = keeping(keeper, "/a", "/vol/x", mount_points=("/vol",))
    for successor in (NEW, NEW, PLACE):
        await made.before_release(successor, held=HELD_PROCESS)
    assert keeper.between == [(OLD, NEW), (OLD, PLACE)]
    assert keeper.used == [("/a",), ("/a",)]


async def test_start_that_is_tried_again_moves_what_was_left() -> None:
    """A path that was copied would look as if it were the image's."""
    keeper = FakeKeeper({"/a": KEPT, "/b": "why"})
    made = keeping(keeper, "/a", "/b")
    await made.before_start(NEW)
    keeper.moved = {"/b": KEPT}
    await made.before_start(NEW)
    assert keeper.used == [("/a", "/b"), ("/b",)]
    assert made.note == "main keeps /a, /b"


async def test_successor_that_runs_already_keeps_nothing() -> None:
    keeper = FakeKeeper({"/a": KEPT})
    made = keeping(keeper, "/a")
    await made.before_release(NEW, held=None)
    assert keeper.used == []
    assert made.note == f"main keeps nothing of /a: {keep.NOT_HELD}"


async def test_swap_reports_what_it_keeps(env: RestartEnv, keeper: FakeKeeper) -> None:
    condition = await env.ask(strategy="swap", keep="/a")
    assert condition.status is ConditionStatus.TRUE
    assert "trainer keeps /a" in condition.message, condition.message
    assert keeper.used == [("/a",)]


async def test_swap_that_keeps_paths_reserves_the_next_name_before_the_stop(
    env: RestartEnv, keeper: FakeKeeper
) -> None:
    """Kubelet's copy of a successor that waits in CREATED would not have them."""
    await env.ask(strategy="swap", keep="/a")
    assert keeper.used == [("/a",)]
    changes = [
        call.method for call in env.pod.cri_env.server.calls if call.method in ("CreateContainer", "StopContainer")
    ]
    assert changes[:3] == ["CreateContainer", "StopContainer", "CreateContainer"]
    assert await env.pod.reserved() == set()


async def test_swap_whose_successor_kubelet_replaces_keeps_nothing(env: RestartEnv, keeper: FakeKeeper) -> None:
    view = next(iter(env.pod.pods.pods().values()))
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/keep": "/a"}))
    plan = await planning.resume(env.dependencies, env.pod.cri_env.intent(created_at=NOW))
    execution = plan_execution.execution_of(env.dependencies, plan)
    outcome = await execution.carry_out()
    assert outcome.notes == ("trainer keeps /a",)
    await env.pod.kubelet_starts("trainer", attempt=3)
    again = await execution.resolve(outcome)
    assert again.result is Result.ADOPTED
    assert again.notes == (f"trainer does not keep /a: {keep.KUBELET}",)
    assert keeper.used == [("/a",)]


async def test_bad_path_refuses_the_restart(env: RestartEnv, keeper: FakeKeeper) -> None:
    condition = await env.ask(strategy="swap", keep="../etc")
    assert condition.status is ConditionStatus.FALSE
    assert "kubemend.io/keep" in condition.message
    assert keeper.used == []
