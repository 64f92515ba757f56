"""Who has left a device, and whose memory is free: what others do on the same device changes neither."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.devices import GpuUuid
from agent.model.workloads import ContainerId
from agent.restart import gates
from agent.restart.gates import DeviceUse, Process, ProcessUse, Seen, Verdict
from agent.restart.verification import CheckState

GPU, OTHER_GPU = GpuUuid("GPU-0"), GpuUuid("GPU-1")
OLD = frozenset({ContainerId("old")})
GIB = 1 << 30
TRAINER, MONITOR, NEW = 11, 22, 33

Users = Mapping[int, int | None]


def seen(users: Users, alive: Mapping[int, str | None], *, beside: int | None = 0, device: GpuUuid = GPU) -> Seen:
    """One look: what each process uses, in which container those are that live, and memory in use beside them."""
    memory = None if beside is None else beside + sum(size or 0 for size in users.values())
    use = DeviceUse(tuple(ProcessUse(pid, size) for pid, size in users.items()), memory_used=memory)
    processes = {
        pid: Process(started=float(pid), container=ContainerId(name) if name is not None else None)
        for pid, name in alive.items()
    }
    return Seen({device: use}, processes)


TRAINS = seen({TRAINER: 40 * GIB, MONITOR: GIB}, {TRAINER: "old", MONITOR: None}, beside=GIB)


def judged(now: Seen | None, *, before: Seen = TRAINS) -> gates.Judgement:
    return gates.judge(gates.remember(before, old=OLD), now, old=OLD)


def test_only_what_is_of_the_old_container_is_remembered() -> None:
    (held,) = gates.remember(TRAINS, old=OLD)
    assert (held.device, dict(held.pids), held.memory, held.unaccounted) == (GPU, {TRAINER: 11.0}, 40 * GIB, GIB)


def test_a_device_that_it_was_not_on_is_nothing_to_wait_for() -> None:
    before = seen({MONITOR: GIB}, {MONITOR: "other"})
    assert gates.remember(before, old=OLD) == ()
    assert judged(Seen({}, {}), before=before).verdict is Verdict.FREE


AFTER = [
    pytest.param(seen({MONITOR: GIB}, {MONITOR: None}, beside=GIB), Verdict.FREE, id="gone"),
    pytest.param(seen({TRAINER: 40 * GIB}, {}, beside=GIB), Verdict.LEFTOVER, id="dead-but-listed"),
    pytest.param(seen({TRAINER: GIB}, {TRAINER: None}, beside=GIB), Verdict.LEFTOVER, id="alive-out-of-its-cgroup"),
    pytest.param(seen({99: GIB}, {99: "old"}, beside=GIB), Verdict.LEFTOVER, id="one-that-was-forked-meanwhile"),
    pytest.param(seen({}, {}, beside=41 * GIB), Verdict.MEMORY_HELD, id="memory-without-an-owner"),
    pytest.param(seen({}, {}, beside=GIB + 200 * 2**20), Verdict.FREE, id="bookkeeping-of-the-driver"),
    pytest.param(seen({NEW: 60 * GIB}, {NEW: "new"}, beside=GIB), Verdict.FREE, id="memory-of-somebody-else"),
    pytest.param(seen({MONITOR: None}, {MONITOR: None}, beside=41 * GIB), Verdict.FREE, id="usage-is-not-told"),
    pytest.param(seen({}, {}, beside=None), Verdict.FREE, id="memory-is-not-told"),
    pytest.param(Seen({}, {}), Verdict.UNKNOWN, id="the-device-does-not-answer"),
    pytest.param(None, Verdict.UNKNOWN, id="the-driver-does-not-answer"),
]


@pytest.mark.parametrize(("now", "verdict"), AFTER)
def test_the_verdict_after_the_stop(now: Seen | None, verdict: Verdict) -> None:
    assert judged(now).verdict is verdict


def test_a_pid_that_was_given_to_another_process_since_is_not_the_old_one() -> None:
    now = seen({TRAINER: GIB}, {TRAINER: "new"})
    reused = Seen(now.devices, {TRAINER: Process(started=500.0, container=ContainerId("new"))})
    assert judged(reused).verdict is Verdict.FREE


def test_where_the_driver_never_said_how_much_it_used_the_list_alone_decides() -> None:
    before = seen({TRAINER: None}, {TRAINER: "old"})
    assert judged(seen({}, {}, beside=50 * GIB), before=before).verdict is Verdict.FREE
    assert judged(seen({TRAINER: None}, {}), before=before).verdict is Verdict.LEFTOVER


def test_who_died_by_itself_and_is_still_listed_is_waited_for() -> None:
    before = seen({TRAINER: GIB, MONITOR: GIB}, {MONITOR: None})
    (held,) = gates.remember(before, old=OLD)
    assert dict(held.pids) == {TRAINER: None}
    assert judged(seen({MONITOR: GIB}, {MONITOR: None}), before=before).verdict is Verdict.FREE


def test_a_dead_process_of_whomever_is_not_waited_for_while_the_old_container_lives() -> None:
    before = seen({TRAINER: GIB, 77: GIB}, {TRAINER: "old"})
    assert judged(seen({77: GIB}, {}), before=before).verdict is Verdict.FREE


def test_a_device_that_was_silent_before_the_stop_is_no_free_device() -> None:
    held = gates.remember(TRAINS, old=OLD)
    free = seen({}, {}, beside=GIB)
    assert gates.judge(held, free, old=OLD, silent=frozenset({OTHER_GPU})).verdict is Verdict.UNKNOWN


def test_every_device_must_be_free() -> None:
    both = Seen({GPU: TRAINS.devices[GPU], OTHER_GPU: TRAINS.devices[GPU]}, TRAINS.processes)
    held = gates.remember(both, old=OLD)
    left_one = Seen({GPU: DeviceUse((), GIB), OTHER_GPU: TRAINS.devices[GPU]}, {})
    found = gates.judge(held, left_one, old=OLD)
    assert (found.verdict, found.pids[GPU], found.pids[OTHER_GPU]) == (
        Verdict.LEFTOVER,
        frozenset(),
        frozenset({TRAINER}),
    )
    assert "pid 11 on GPU-1" in found.detail
    assert "GPU-0" not in found.detail


def test_what_no_signal_reaches_is_stuck_once_time_is_up() -> None:
    left = judged(seen({TRAINER: GIB, 99: GIB}, {TRAINER: "old", 99: "old"}))
    stuck = gates.overdue(left, stuck=frozenset({TRAINER, 12345}))
    assert (stuck.verdict, stuck.pids[GPU]) == (Verdict.STUCK, frozenset({TRAINER}))
    assert "state D" in stuck.detail
    assert gates.overdue(left, stuck=frozenset()) == left


def test_only_a_free_device_passes_and_only_a_found_trouble_fails() -> None:
    states = {verdict: gates.check(gates.Judgement(verdict)).state for verdict in Verdict}
    failed = {verdict for verdict, state in states.items() if state is CheckState.FAILED}
    assert failed == {Verdict.LEFTOVER, Verdict.STUCK, Verdict.MEMORY_HELD}
    assert {verdict for verdict, state in states.items() if state is CheckState.PASSED} == {Verdict.FREE}


def test_the_gravest_judgement_counts() -> None:
    assert gates.worst([]).verdict is Verdict.FREE
    assert gates.worst([gates.Judgement(verdict) for verdict in Verdict]).verdict is Verdict.STUCK


sizes = st.none() | st.integers(0, 80 * GIB)


@given(
    mine=st.dictionaries(st.integers(1, 5), sizes, min_size=1),
    others=st.dictionaries(st.integers(6, 10), sizes),
    later=st.dictionaries(st.integers(6, 15), sizes),
    beside=st.integers(0, 4 * GIB),
)
def test_whatever_others_do_a_device_is_free_when_the_old_ones_are_gone_with_their_memory(
    mine: Users, others: Users, later: Users, beside: int
) -> None:
    alive: dict[int, str | None] = dict.fromkeys(mine, "old")
    before = seen({**mine, **others}, {**alive, **dict.fromkeys(others, "other")}, beside=beside)
    after = seen(later, dict.fromkeys(later, "other"), beside=beside)
    assert judged(after, before=before).verdict is Verdict.FREE
    still = seen({**later, **mine}, {**dict.fromkeys(later, "other"), **alive}, beside=beside)
    assert judged(still, before=before).verdict is Verdict.LEFTOVER
