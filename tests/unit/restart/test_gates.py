"""Which process has left a device, and whose memory is free: other users of the device change neither."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import device_release
from kubemend.agent.restart.device_release import DeviceListing, DeviceUse, Process, ProcessUse, ReleaseState
from kubemend.agent.restart.verification import CheckState

GPU, OTHER_GPU = DeviceId("GPU-0"), DeviceId("GPU-1")
OLD = frozenset({ContainerId("old")})
GIB = 1 << 30
TRAINER, MONITOR, NEW = 11, 22, 33

Users = Mapping[int, int | None]


def seen(
    users: Users, alive: Mapping[int, str | None], *, beside: int | None = 0, device: DeviceId = GPU
) -> DeviceListing:
    """One listing: each process's memory, the containers of live processes, and other memory in use."""
    memory = None if beside is None else beside + sum(size or 0 for size in users.values())
    use = DeviceUse(tuple(ProcessUse(pid, size) for pid, size in users.items()), memory_used=memory)
    processes = {
        pid: Process(started=float(pid), container=ContainerId(name) if name is not None else None)
        for pid, name in alive.items()
    }
    return DeviceListing({device: use}, processes)


TRAINS = seen({TRAINER: 40 * GIB, MONITOR: GIB}, {TRAINER: "old", MONITOR: None}, beside=GIB)


def judged(now: DeviceListing | None, *, before: DeviceListing = TRAINS) -> device_release.ReleaseCheck:
    return device_release.judge(device_release.remember(before, old=OLD), now, old=OLD)


def test_only_processes_of_the_old_container_are_recorded() -> None:
    (held,) = device_release.remember(TRAINS, old=OLD)
    assert (held.device, dict(held.pids), held.memory, held.unaccounted) == (GPU, {TRAINER: 11.0}, 40 * GIB, GIB)


def test_unused_device_is_not_waited_for() -> None:
    before = seen({MONITOR: GIB}, {MONITOR: "other"})
    assert device_release.remember(before, old=OLD) == ()
    assert judged(DeviceListing({}, {}), before=before).verdict is ReleaseState.FREE


RECORDED = {TRAINER: Process(11.0, ContainerId("old")), 44: Process(44.0, ContainerId("sibling"))}


def late(
    listed: DeviceListing | None, recorded: Mapping[int, Process], *, devices: frozenset[DeviceId] = frozenset({GPU})
) -> dict[DeviceId, Mapping[int, float | None]]:
    found = device_release.remember_late(listed, recorded, devices=devices, old=OLD)
    assert all((item.memory, item.unaccounted) == (None, None) for item in found)
    return {item.device: item.pids for item in found}


def test_without_a_list_processes_with_device_files_count_for_all_devices() -> None:
    both = frozenset({GPU, OTHER_GPU})
    assert late(None, RECORDED, devices=both) == {GPU: {TRAINER: 11.0}, OTHER_GPU: {TRAINER: 11.0}}
    assert late(None, {}, devices=both) == {}


def test_late_list_names_dead_process_that_had_device_files() -> None:
    assert late(seen({TRAINER: 20 * GIB, MONITOR: GIB}, {MONITOR: None}), RECORDED) == {GPU: {TRAINER: 11.0}}


def test_late_list_alone_identifies_processes_by_their_container() -> None:
    assert late(TRAINS, {}) == {GPU: {TRAINER: 11.0}}
    assert late(seen({MONITOR: GIB}, {MONITOR: "other"}), {}) == {}


def test_memory_that_was_half_freed_in_a_late_list_accuses_no_process() -> None:
    half = seen({TRAINER: 40 * GIB}, {TRAINER: "old"}, beside=-20 * GIB)
    held = device_release.remember_late(half, RECORDED, devices=frozenset({GPU}), old=OLD)
    assert device_release.judge(held, seen({}, {}, beside=GIB), old=OLD).verdict is ReleaseState.FREE


def test_reused_pid_of_a_recorded_process_is_not_waited_for() -> None:
    held = device_release.remember_late(None, RECORDED, devices=frozenset({GPU}), old=OLD)
    reused = DeviceListing(
        {GPU: DeviceUse((ProcessUse(TRAINER, GIB),), GIB)}, {TRAINER: Process(99.0, ContainerId("new"))}
    )
    assert device_release.judge(held, reused, old=OLD).verdict is ReleaseState.FREE


AFTER = [
    pytest.param(seen({MONITOR: GIB}, {MONITOR: None}, beside=GIB), ReleaseState.FREE, id="gone"),
    pytest.param(seen({TRAINER: 40 * GIB}, {}, beside=GIB), ReleaseState.LEFTOVER, id="dead-but-listed"),
    pytest.param(
        seen({TRAINER: GIB}, {TRAINER: None}, beside=GIB), ReleaseState.LEFTOVER, id="alive-out-of-its-cgroup"
    ),
    pytest.param(seen({99: GIB}, {99: "old"}, beside=GIB), ReleaseState.LEFTOVER, id="one-forked-in-between"),
    pytest.param(seen({}, {}, beside=41 * GIB), ReleaseState.MEMORY_HELD, id="memory-without-an-owner"),
    pytest.param(seen({}, {}, beside=GIB + 200 * 2**20), ReleaseState.FREE, id="bookkeeping-of-the-driver"),
    pytest.param(seen({NEW: 60 * GIB}, {NEW: "new"}, beside=GIB), ReleaseState.FREE, id="memory-of-another-process"),
    pytest.param(seen({MONITOR: None}, {MONITOR: None}, beside=41 * GIB), ReleaseState.FREE, id="usage-not-reported"),
    pytest.param(seen({}, {}, beside=None), ReleaseState.FREE, id="memory-not-reported"),
    pytest.param(DeviceListing({}, {}), ReleaseState.UNKNOWN, id="the-device-does-not-answer"),
    pytest.param(None, ReleaseState.UNKNOWN, id="the-driver-does-not-answer"),
]


@pytest.mark.parametrize(("now", "verdict"), AFTER)
def test_judge_returns_the_state_after_the_stop(now: DeviceListing | None, verdict: ReleaseState) -> None:
    assert judged(now).verdict is verdict


def test_reused_pid_is_not_the_old_process() -> None:
    now = seen({TRAINER: GIB}, {TRAINER: "new"})
    reused = DeviceListing(now.devices, {TRAINER: Process(started=500.0, container=ContainerId("new"))})
    assert judged(reused).verdict is ReleaseState.FREE


def test_process_list_decides_without_memory_figures() -> None:
    before = seen({TRAINER: None}, {TRAINER: "old"})
    assert judged(seen({}, {}, beside=50 * GIB), before=before).verdict is ReleaseState.FREE
    assert judged(seen({TRAINER: None}, {}), before=before).verdict is ReleaseState.LEFTOVER


def test_listed_process_that_died_by_itself_is_waited_for() -> None:
    before = seen({TRAINER: GIB, MONITOR: GIB}, {MONITOR: None})
    (held,) = device_release.remember(before, old=OLD)
    assert dict(held.pids) == {TRAINER: None}
    assert judged(seen({MONITOR: GIB}, {MONITOR: None}), before=before).verdict is ReleaseState.FREE


def test_foreign_dead_process_is_ignored_while_old_container_lives() -> None:
    before = seen({TRAINER: GIB, 77: GIB}, {TRAINER: "old"})
    assert judged(seen({77: GIB}, {}), before=before).verdict is ReleaseState.FREE


def test_device_silent_before_the_stop_is_not_free() -> None:
    held = device_release.remember(TRAINS, old=OLD)
    free = seen({}, {}, beside=GIB)
    assert device_release.judge(held, free, old=OLD, silent=frozenset({OTHER_GPU})).verdict is ReleaseState.UNKNOWN


def test_every_device_must_be_free() -> None:
    both = DeviceListing({GPU: TRAINS.devices[GPU], OTHER_GPU: TRAINS.devices[GPU]}, TRAINS.processes)
    held = device_release.remember(both, old=OLD)
    left_one = DeviceListing({GPU: DeviceUse((), GIB), OTHER_GPU: TRAINS.devices[GPU]}, {})
    found = device_release.judge(held, left_one, old=OLD)
    assert (found.verdict, found.pids[GPU], found.pids[OTHER_GPU]) == (
        ReleaseState.LEFTOVER,
        frozenset(),
        frozenset({TRAINER}),
    )
    assert "pid 11 on GPU-1" in found.detail
    assert "GPU-0" not in found.detail


def test_unkillable_process_is_stuck_after_the_timeout() -> None:
    left = judged(seen({TRAINER: GIB, 99: GIB}, {TRAINER: "old", 99: "old"}))
    stuck = device_release.overdue(left, stuck=frozenset({TRAINER, 12345}))
    assert (stuck.verdict, stuck.pids[GPU]) == (ReleaseState.STUCK, frozenset({TRAINER}))
    assert "state D" in stuck.detail
    assert device_release.overdue(left, stuck=frozenset()) == left


def test_check_passes_for_free_and_fails_for_problems_only() -> None:
    states = {verdict: device_release.check(device_release.ReleaseCheck(verdict)).state for verdict in ReleaseState}
    failed = {verdict for verdict, state in states.items() if state is CheckState.FAILED}
    assert failed == {ReleaseState.LEFTOVER, ReleaseState.STUCK, ReleaseState.MEMORY_HELD}
    assert {verdict for verdict, state in states.items() if state is CheckState.PASSED} == {ReleaseState.FREE}


def test_worst_result_counts() -> None:
    assert device_release.worst([]).verdict is ReleaseState.FREE
    assert (
        device_release.worst([device_release.ReleaseCheck(verdict) for verdict in ReleaseState]).verdict
        is ReleaseState.STUCK
    )


sizes = st.none() | st.integers(0, 80 * GIB)


@given(
    mine=st.dictionaries(st.integers(1, 5), sizes, min_size=1),
    others=st.dictionaries(st.integers(6, 10), sizes),
    later=st.dictionaries(st.integers(6, 15), sizes),
    beside=st.integers(0, 4 * GIB),
)
def test_device_is_free_once_old_processes_and_memory_are_gone(
    mine: Users, others: Users, later: Users, beside: int
) -> None:
    alive: dict[int, str | None] = dict.fromkeys(mine, "old")
    before = seen({**mine, **others}, {**alive, **dict.fromkeys(others, "other")}, beside=beside)
    after = seen(later, dict.fromkeys(later, "other"), beside=beside)
    assert judged(after, before=before).verdict is ReleaseState.FREE
    still = seen({**later, **mine}, {**dict.fromkeys(later, "other"), **alive}, beside=beside)
    assert judged(still, before=before).verdict is ReleaseState.LEFTOVER
