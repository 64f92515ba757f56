"""When a killed container is stuck: by the state of its threads, never by the duration alone."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.hangs import Thread
from kubemend.agent.restart import stuck

WINDOW = stuck.WINDOW

THREADS = st.builds(
    Thread,
    pid=st.integers(1, 2),
    tid=st.integers(1, 3),
    name=st.just("python"),
    state=st.sampled_from("DRSZ"),
    stack=st.sampled_from([(), ("os_acquire_mutex",), ("exit_mmap",)]),
    used=st.integers(0, 2),
)
LOOKS = st.lists(
    st.tuples(st.floats(0.0, 2 * stuck.GAP), st.lists(THREADS, max_size=3).map(tuple)), min_size=1, max_size=16
)


def waits(*, used: int = 0, stack: tuple[str, ...] = ("os_acquire_mutex",), state: str = "D") -> tuple[Thread, ...]:
    return (Thread(7, 7, "python", "Z"), Thread(7, 8, "python", state, stack=stack, used=used))


def after(*looks: tuple[float, tuple[Thread, ...]]) -> bool:
    """Return the result of consecutive readings, each a given time after the one before."""
    still, now = None, 0.0
    for seconds, threads in looks:
        now += seconds
        still = stuck.follow(still, threads, now=now)
    return stuck.is_stuck(still)


def every_second(seconds: float) -> list[tuple[float, tuple[Thread, ...]]]:
    return [(1.0, waits())] * int(seconds)


def test_thread_waiting_in_kernel_without_cpu_time_is_stuck() -> None:
    assert after((0.0, waits()), *every_second(WINDOW))
    assert not after((0.0, waits()), *every_second(WINDOW - 1))


def test_time_in_which_the_agent_could_not_read_proves_nothing() -> None:
    suspended = (0.0, waits()), (3600.0, waits())
    assert not after(*suspended)
    assert not after(*suspended, *every_second(WINDOW - stuck.GAP - 1))
    assert after(*suspended, *every_second(WINDOW - stuck.GAP))


def test_threads_that_could_not_be_read_for_a_window_are_not_stuck() -> None:
    assert not after((0.0, waits()))
    assert not stuck.is_stuck(stuck.UnchangedThreads(waits(), seconds=WINDOW - 1, read_at=0.0))
    assert stuck.is_stuck(stuck.UnchangedThreads(waits(), seconds=WINDOW, read_at=0.0))


def test_changing_threads_are_not_stuck_at_any_duration() -> None:
    assert not after(*((stuck.GAP, waits(used=ticks)) for ticks in range(100)))
    assert not after(*((stuck.GAP, waits(stack=(f"free_pages_{ticks}",))) for ticks in range(100)))


def test_running_sleeping_or_ended_threads_are_not_stuck() -> None:
    for threads in (waits(state="S"), waits(state="R"), (), (*waits(), Thread(7, 9, "python", "R"))):
        assert not after(*[(1.0, threads)] * int(10 * WINDOW))


@given(looks=LOOKS)
def test_stuck_requires_a_whole_window_without_change(
    looks: list[tuple[float, tuple[Thread, ...]]],
) -> None:
    if not after(*looks):
        return
    *_, (_, last) = looks
    unchanged = 0.0
    for (seconds, threads), (_, before) in zip(reversed(looks), list(reversed(looks))[1:], strict=False):
        if threads != before:
            break
        unchanged += min(seconds, stuck.GAP)
    assert unchanged >= WINDOW - 1e-6
    assert any(thread.state == "D" for thread in last)
