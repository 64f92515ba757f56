"""From checks of a heartbeat file to a hang: only after a beat, only by time that was really watched."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.state import heartbeat
from kubemend.agent.health.state.heartbeat import Blank, HeartbeatState, HeartbeatStatus, Mark, Poll

TIMEOUT = 60.0
PERIOD = 15.0


def mark(version: int, *, wall: float = 1000.0) -> Mark:
    return Mark(device=1, inode=7, modified=int(wall * 1e9), changed=version)


def poll(at: float, result: Mark | Blank, *, slept: float = 0.0, lasts: float = 0.0) -> Poll:
    return Poll(began=at, ended=at + lasts, slept=slept, result=result)


def after(polls: Iterable[Poll], *, state: HeartbeatState | None = None, timeout: float = TIMEOUT) -> HeartbeatState:
    state = state if state is not None else HeartbeatState()
    for each in polls:
        state = heartbeat.after(state, each, timeout=timeout)
    return state


def every_period(*results: Mark | Blank, since: float = 0.0) -> list[Poll]:
    return [poll(since + PERIOD * number, result) for number, result in enumerate(results)]


BEATS = every_period(mark(1), mark(2))


def test_file_unchanged_for_the_timeout_after_a_beat_is_a_hang() -> None:
    silence = every_period(*[mark(2)] * 3, since=30.0)
    assert after([*BEATS, *silence]).status is HeartbeatStatus.BEATING
    assert after([*BEATS, *silence, poll(75.0, mark(2))]).status is HeartbeatStatus.HUNG


def test_each_touch_restarts_the_count() -> None:
    polls = every_period(*[mark(number // 4) for number in range(40)])
    assert {after(polls[:count]).status for count in range(6, 40)} == {HeartbeatStatus.BEATING}


@pytest.mark.parametrize("result", [mark(1), Blank.ABSENT])
def test_container_that_never_touched_the_file_never_hangs(result: Mark | Blank) -> None:
    assert after(every_period(*[result] * 1000)).status is HeartbeatStatus.NOT_STARTED


def test_new_file_is_the_first_beat() -> None:
    assert after(every_period(Blank.ABSENT, mark(1))).status is HeartbeatStatus.BEATING


def test_replaced_file_counts_as_touched() -> None:
    replaced = Mark(device=1, inode=8, modified=mark(1).modified, changed=1)
    assert after(every_period(mark(1), replaced)).status is HeartbeatStatus.BEATING


def test_removed_file_withdraws_the_heartbeat() -> None:
    polls = [*BEATS, *every_period(Blank.ABSENT, *[mark(2)], since=30.0)]
    assert after(polls[:3]).status is HeartbeatStatus.NOT_STARTED
    assert after(polls).status is HeartbeatStatus.BEATING
    assert after([*BEATS, *every_period(*[Blank.ABSENT] * 100, since=30.0)]).status is HeartbeatStatus.NOT_STARTED


@pytest.mark.parametrize("blank", [Blank.PAUSED, Blank.UNKNOWN])
def test_paused_or_unseen_container_never_hangs_and_gets_whole_timeout_afterwards(blank: Blank) -> None:
    blind = after([*BEATS, *every_period(*[blank] * 100, since=30.0)])
    assert blind.status is HeartbeatStatus.UNKNOWN
    seen = every_period(*[mark(2)] * 5, since=1530.0)
    assert after(seen[:4], state=blind).status is HeartbeatStatus.BEATING
    assert after(seen, state=blind).status is HeartbeatStatus.HUNG


def test_jump_of_wall_clock_is_not_a_hang() -> None:
    """The file's time is years off after each jump, while the container beats."""
    walls = [1e9, 2e9, 1.0, 3e9, 0.0]
    polls = every_period(*[mark(number, wall=walls[number % 5]) for number in range(50)])
    assert {after(polls[:count]).status for count in range(2, 50)} == {HeartbeatStatus.BEATING}


def test_file_time_set_back_counts_as_touch() -> None:
    assert after(every_period(mark(1, wall=5.0), mark(2, wall=5.0))).status is HeartbeatStatus.BEATING


def test_suspend_of_node_restarts_the_count() -> None:
    asleep = [poll(75.0, mark(2), slept=3600.0)]
    awake = [poll(75.0 + PERIOD * number, mark(2), slept=3600.0) for number in range(1, 5)]
    silence = every_period(*[mark(2)] * 3, since=30.0)
    assert after([*BEATS, *silence, *asleep, *awake[:3]]).status is HeartbeatStatus.BEATING
    assert after([*BEATS, *silence, *asleep, *awake]).status is HeartbeatStatus.HUNG


def test_very_late_check_is_not_proof_of_a_hang() -> None:
    """The agent did not run, so the container may not have run either."""
    assert after([*BEATS, poll(10_000.0, mark(2))]).status is HeartbeatStatus.BEATING


def test_slow_check_counts_only_its_certain_time() -> None:
    slow = [poll(15.0 * number, mark(min(number, 1)), lasts=2.0) for number in range(6)]
    assert after(slow).silent == pytest.approx(4 * 13.0)


def test_remembered_container_hangs_without_another_beat() -> None:
    silence = every_period(*[mark(1)] * 5)
    assert after(silence).status is HeartbeatStatus.NOT_STARTED
    assert after(silence, state=heartbeat.REMEMBERED).status is HeartbeatStatus.HUNG


def test_next_check_is_due_by_the_earliest_possible_hang() -> None:
    state = after([*BEATS, *every_period(*[mark(2)] * 3, since=30.0), poll(70.0, mark(2))])
    assert state.silent == 55.0
    assert heartbeat.until_next_poll(state, timeout=TIMEOUT) == 5.0


@pytest.mark.parametrize(("timeout", "period"), [(1.0, 0.25), (60.0, 15.0), (3600.0, 15.0)])
def test_every_timeout_has_several_checks(timeout: float, period: float) -> None:
    assert heartbeat.period(timeout) == period


SIGHTS = st.one_of(st.sampled_from([*Blank]), st.integers(0, 3).map(mark))
STEPS = st.lists(
    st.tuples(st.floats(0.01, 200.0), st.floats(0.0, 3.0), st.sampled_from([0.0, 0.0, 0.0, 500.0]), SIGHTS), max_size=40
)


def timeline(steps: Sequence[tuple[float, float, float, Mark | Blank]]) -> list[Poll]:
    polls, at, slept = [], 0.0, 0.0
    for wait, lasts, sleeps, result in steps:
        at, slept = at + wait, slept + sleeps
        polls.append(poll(at, result, slept=slept, lasts=lasts))
        at += lasts
    return polls


@given(STEPS)
def test_hang_requires_a_beat_and_gapless_silence_of_the_timeout(
    steps: list[tuple[float, float, float, Mark | Blank]],
) -> None:
    polls = timeline(steps)
    for count in range(1, len(polls) + 1):
        state = after(polls[:count])
        if state.status is not HeartbeatStatus.HUNG:
            continue
        last = polls[count - 1].result
        silence = [each for each in polls[:count] if each is polls[count - 1]]
        for each in reversed(polls[: count - 1]):
            if each.result != last or each.slept != silence[0].slept:
                break
            silence.insert(0, each)
        assert silence[-1].began - silence[0].ended >= TIMEOUT - 1e-6
        assert len(silence) > TIMEOUT / (2 * PERIOD), "no single poll proves much"
        earlier = [each.result for each in polls[: count - len(silence)]]
        since_gone = earlier[len(earlier) - earlier[::-1].index(Blank.ABSENT) :] if Blank.ABSENT in earlier else earlier
        reported = {each for each in [*since_gone, last] if isinstance(each, Mark)}
        assert len(reported) > 1 or Blank.ABSENT in earlier, "it has beaten"


@given(st.lists(st.booleans(), max_size=60), st.floats(1.0, 4000.0))
def test_stopped_heartbeat_is_found_within_timeout_and_one_period(beats: list[bool], timeout: float) -> None:
    state, at, version = HeartbeatState(), 0.0, 0
    for beat in [True, True, *beats, True]:
        version += beat
        state = after([poll(at, mark(version))], state=state, timeout=timeout)
        at += heartbeat.until_next_poll(state, timeout=timeout)
    stopped_at = state.counted_to
    assert stopped_at is not None
    while state.status is not HeartbeatStatus.HUNG:
        state = after([poll(at, mark(version))], state=state, timeout=timeout)
        waited = at - stopped_at.began
        at += heartbeat.until_next_poll(state, timeout=timeout)
        assert waited <= timeout + heartbeat.period(timeout)
