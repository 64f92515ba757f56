"""Bars from a Restart object."""

import copy
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.cli import bars, bars_text
from kubemend.cli.bars import Bar, Chart
from kubemend.controller.restarts import objects
from kubemend.controller.rounds import timeline
from kubemend.controller.rounds.timeline import Segment
from tests.unit.cli import builders


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(dict(builders.DONE)), **parts}


def chart(status: dict[str, Any] | None = None, *, most: int = bars.MOST_BARS) -> Chart:
    made = objects.parse(builders.restart(status=status if status is not None else builders.DONE))
    return bars.chart(made, most=most)


def bar(of: Chart, member: str) -> Bar:
    return next(each for each in of.bars if each.member == member)


def test_times_count_from_the_fault() -> None:
    drawn = chart()
    assert (drawn.decided, drawn.all_dead, drawn.total, drawn.span) == (40, 240, 340, 340)
    assert [(each.member, each.ran_at) for each in drawn.bars] == [("train-0", 340), ("train-2", 290), ("train-1", 260)]


def test_phases_end_when_the_member_had_stopped() -> None:
    assert bar(chart(), "train-0").segments == (
        Segment("order", 40, 60),
        Segment("create", 60, 100),
        Segment("start", 100, 130),
        Segment("stop", 130, 240),
        Segment("release", 240, 340),
    )


def test_phases_after_the_death_take_no_time_before_it() -> None:
    slowest = copy.deepcopy(builders.DONE["slowest"])
    slowest[0]["phases"] |= {"confirm": 20, "held": 500, "remove": 170}
    assert bar(chart(changed(slowest=slowest)), "train-0") == bar(chart(), "train-0")


def test_new_container_that_starts_after_the_death_is_drawn_after_it() -> None:
    slowest = copy.deepcopy(builders.DONE["slowest"])
    slowest[0] |= {"startedLate": True, "runningMilliseconds": 220}
    slowest[1]["startedLate"] = True
    drawn = chart(changed(slowest=slowest, timings={**builders.DONE["timings"], "totalMilliseconds": 290}))
    assert bar(drawn, "train-0").segments == (
        Segment("order", 40, 90),
        Segment("stop", 90, 200),
        Segment("create", 200, 240),
        Segment("start", 240, 260),
    ), "it was never held"
    assert bar(drawn, "train-2").segments[-3:] == (
        Segment("start", 140, 170),
        Segment("held", 170, 240),
        Segment("release", 240, 290),
    )


def test_all_were_dead_before_the_wait_for_recreated_members() -> None:
    drawn = chart(changed(timings={**builders.DONE["timings"], "recreateMilliseconds": 150}))
    assert drawn.all_dead == 90
    assert bar(drawn, "train-2").segments[-2:] == (Segment("held", 140, 240), Segment("release", 240, 290))


def test_member_stopped_early_is_held_until_all_are() -> None:
    assert bar(chart(), "train-2").segments[-2:] == (Segment("held", 140, 240), Segment("release", 240, 290))


def test_a_member_without_phases_is_stopped_as_a_whole() -> None:
    assert bar(chart(), "train-1").segments[0] == Segment("stop", 40, 190)


def test_the_member_that_was_hit_is_marked_and_no_other() -> None:
    assert [each.member for each in chart().bars if each.hit] == ["train-2"]


def test_failed_member_comes_first_with_the_reason() -> None:
    failures = [
        {"member": "train-1", "node": "node-a", "reason": "Stuck", "message": "does not end"},
        {"member": "train-9", "node": "node-c", "reason": "NodeLost", "message": ""},
    ]
    slowest = copy.deepcopy(builders.DONE["slowest"])
    del slowest[2]["runningMilliseconds"]
    drawn = chart(changed(phase="Degraded", failures=failures, slowest=slowest))
    assert [each.member for each in drawn.bars] == ["train-1", "train-9", "train-0", "train-2"]
    assert (drawn.bars[0].failure, drawn.bars[0].ran_at) == ("Stuck: does not end", None)
    assert drawn.bars[0].segments[-1] == Segment("held", 190, 240)
    assert (drawn.bars[1].failure, drawn.bars[1].node, drawn.bars[1].segments) == ("NodeLost", "node-c", ())


def test_replacement_counts_as_recreated() -> None:
    slowest = [{"member": "train-0", "node": "node-z", "runningMilliseconds": 300, "phases": {}}]
    assert bar(chart(changed(slowest=slowest)), "train-0").segments == (Segment("recreate", 40, 340),)


def test_rolling_round_holds_no_member() -> None:
    drawn = chart(changed(timings={"stopMilliseconds": 200, "totalMilliseconds": 340}))
    assert (drawn.decided, drawn.all_dead) == (40, None)
    assert timeline.HELD not in drawn.steps
    assert bar(drawn, "train-2").segments[-1] == Segment("release", 140, 290)


def test_without_a_running_member_times_count_from_the_decision() -> None:
    slowest = [{"member": "train-0", "stoppedMilliseconds": 200, "phases": {}}]
    drawn = chart(changed(phase="Failed", timings={"stopMilliseconds": 200}, slowest=slowest))
    assert (drawn.decided, drawn.total, drawn.all_dead) == (None, None, 200)
    assert drawn.bars[0].segments == (Segment("stop", 0, 200),)


def test_phases_that_took_longer_than_there_was_time_are_shortened_alike() -> None:
    slowest = [
        {
            "member": "train-0",
            "stoppedMilliseconds": 100,
            "runningMilliseconds": 300,
            "phases": {"stop": 300, "start": 100},
        }
    ]
    assert bar(chart(changed(slowest=slowest)), "train-0").segments[:2] == (
        Segment("start", 40, 65),
        Segment("stop", 65, 140),
    )


def test_unknown_phases_come_after_the_known_ones_by_name() -> None:
    slowest = [
        {
            "member": "train-0",
            "stoppedMilliseconds": 100,
            "runningMilliseconds": 300,
            "phases": {"warm": 10, "aim": 10, "start": 10},
        }
    ]
    assert chart(changed(slowest=slowest)).steps == ("order", "start", "aim", "warm", "held", "release")


def test_of_many_members_the_slowest_are_taken_and_the_others_counted() -> None:
    slowest = [
        {"member": f"train-{number}", "stoppedMilliseconds": 100, "runningMilliseconds": 300 - number, "phases": {}}
        for number in range(60)
    ]
    drawn = chart(changed(slowest=slowest, members={"total": 500}))
    assert [each.member for each in drawn.bars] == [f"train-{number}" for number in range(40)]
    assert drawn.left_out == 460


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, "has not ended yet (requested)"),
        ({"phase": "Stopping"}, "has not ended yet (Stopping)"),
        ({"phase": "Refused"}, "is Refused and has no times of any member"),
    ],
)
def test_nothing_to_draw_gives_the_reason(status: dict[str, Any] | None, reason: str) -> None:
    with pytest.raises(bars.NothingToDrawError) as raised:
        bars.chart(objects.parse(builders.restart(status=status)))
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ({"status": "True", "reason": "AllHeld"}, "no new container ran before all old ones were dead"),
        (
            {"status": "False", "reason": "HeldAfterMilliseconds", "message": "1 members ran"},
            "not held together (HeldAfterMilliseconds): 1 members ran",
        ),
        ({"status": "False", "reason": "Rolling", "message": "in turn"}, "not held together (Rolling): in turn"),
    ],
)
def test_chart_reports_whether_a_successor_ran_too_early(condition: dict[str, str], held: str) -> None:
    complete = {"type": "Complete", "status": "True", "reason": "Done"}
    assert chart(changed(conditions=[complete, {"type": "HeldTogether", **condition}])).held == held


lengths = st.integers(min_value=0, max_value=100_000)
members = st.fixed_dictionaries(
    {},
    optional={
        "stoppedMilliseconds": lengths,
        "runningMilliseconds": lengths,
        "phases": st.dictionaries(st.sampled_from(("stop", "create", "start", "device", "strange")), lengths),
    },
)


@given(reported=st.lists(members, min_size=1, max_size=8), stop=st.none() | lengths, total=st.none() | lengths)
def test_segments_follow_each_other_within_the_chart(
    reported: list[dict[str, Any]], stop: int | None, total: int | None
) -> None:
    timings = {"stopMilliseconds": stop, "releaseMilliseconds": 5, "totalMilliseconds": total}
    slowest = [{"member": f"train-{number}", **each} for number, each in enumerate(reported)]
    drawn = chart(changed(slowest=slowest, timings={name: at for name, at in timings.items() if at is not None}))
    for each in drawn.bars:
        at = 0.0
        for segment in each.segments:
            assert at - 1e-6 <= segment.begin < segment.end
            at = segment.end
        assert each.end <= drawn.span


EVIL = "\x1b[2J\x1b]0;title\x07\nline\u202e\u2028"


def test_untrusted_texts_do_not_move_the_cursor() -> None:
    reported = {
        "trigger": dict.fromkeys(("kind", "member", "node", "code", "message"), EVIL),
        "decision": dict.fromkeys(("kind", "reason", "detail"), EVIL),
        "slowest": [{**each, "node": EVIL, "phases": {EVIL: 5}} for each in builders.DONE["slowest"]],
        "failures": [{"member": "train-2", "node": EVIL, "reason": EVIL, "message": EVIL}],
        "conditions": [{"type": "HeldTogether", "status": "False", "reason": EVIL, "message": EVIL}],
    }
    found = chart(changed(**reported))
    drawn = bars_text.draw(found, width=80, colour=False)
    assert all(line.isprintable() for line in drawn.splitlines())
    assert "[2J" in drawn
    from kubemend.cli import bars_svg  # matplotlib takes a second

    ET.fromstring(bars_svg.draw(found))


def test_texts_of_a_request_do_not_move_the_cursor() -> None:
    spec = {"gang": {"kind": "JobSet", "name": "train"}, "reason": EVIL}
    asked = builders.restart(status=changed(trigger={}), spec=spec)
    assert bars.chart(objects.parse(asked)).message.isprintable()
