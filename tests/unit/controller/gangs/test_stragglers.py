"""Stragglers: a member that lags behind a busy gang is reported once; missing data have no effect."""

from collections.abc import Mapping, Sequence

import pytest

from kubemend.controller.gangs.stragglers import Measure, Report, Watch, read
from kubemend.controller.model.members import PodUid, Sample

A, B, C, D = (PodUid(name) for name in "abcd")
GANG = (A, B, C, D)
BUSY = (0.95, 0.9, 0.8)
IDLE = (0.05, 0.2, 0.2)
THROTTLED = (0.95, 0.4, 0.8)

Load = tuple[float, float, float]


def samples(loads: Mapping[PodUid, Load]) -> list[Sample]:
    return [Sample(pod, f"GPU-{pod}", *load) for pod, load in loads.items()]


def watched(
    *spans: tuple[float, Mapping[PodUid, Load]], members: Sequence[PodUid] = GANG, watch: Watch | None = None
) -> tuple[Watch, list[Report]]:
    """Take samples every 5 s, for this many seconds each."""
    watch, now = watch or Watch(), 1000.0
    reports: list[Report] = []
    for seconds, loads in spans:
        for _ in range(int(seconds / 5)):
            now += 5.0
            watch, new = watch.seen(read(samples(loads), now=now)).judged(members, now=now)
            reports += new
    return watch, reports


def everyone(load: Load = BUSY, **others: Load) -> dict[PodUid, Load]:
    return {**dict.fromkeys(GANG, load), **{PodUid(name): other for name, other in others.items()}}


def test_member_that_lags_for_long_is_reported_once() -> None:
    _, reports = watched((300, everyone(d=THROTTLED)))
    assert [(each.pod, each.measure, each.ended) for each in reports] == [(D, Measure.CLOCK, False)]
    assert str(reports[0]) == "clock is 40%, the gang's median is 90%"
    assert reports[0].since == 1005.0


def test_short_dip_is_not_reported() -> None:
    _, reports = watched((100, everyone(d=THROTTLED)), (5, everyone()), (100, everyone(d=THROTTLED)))
    assert reports == []


def test_report_ends_after_member_caught_up_for_long() -> None:
    _, reports = watched((150, everyone(d=THROTTLED)), (150, everyone()))
    assert [each.ended for each in reports] == [False, True]
    assert str(reports[1]) == "clock is back at 90%, the gang's median is 90%"


def test_member_near_threshold_does_not_flap() -> None:
    nearly = (0.95, 0.9 * 0.8, 0.8)  # above where a report begins, below where it ends
    watch, reports = watched((150, everyone(d=THROTTLED)), (300, everyone(d=nearly)), (150, everyone(d=THROTTLED)))
    assert len(reports) == 1
    assert (D, Measure.CLOCK) in watch.lagging


def test_members_of_idle_gang_are_not_compared() -> None:
    _, reports = watched((300, everyone(IDLE, d=(0.01, 0.05, 0.05))))
    assert reports == []


def test_two_members_have_no_median() -> None:
    _, reports = watched((300, {A: BUSY, B: THROTTLED}), members=(A, B))
    assert reports == []


@pytest.mark.parametrize("unknown", [(-1.0, -1.0, -1.0), (0.95, -1.0, -1.0)])
def test_missing_data_neither_begins_nor_ends_a_report(unknown: Load) -> None:
    _, begun = watched((300, everyone(d=unknown)))
    assert begun == []
    watch, reports = watched((150, everyone(d=THROTTLED)), (300, everyone(d=unknown)))
    assert [each.ended for each in reports] == [False]
    assert (D, Measure.CLOCK) in watch.lagging


def test_old_samples_are_ignored() -> None:
    watch, _ = watched((60, everyone(d=THROTTLED)))
    watch, reports = watched((300, {A: BUSY, B: BUSY, C: BUSY}), watch=watch)
    assert reports == []


def test_devices_of_a_member_are_averaged() -> None:
    found = read([Sample(A, "GPU-0", 1.0, 0.5, -1.0), Sample(A, "GPU-1", 0.5, -1.0, -1.0)], now=0.0)
    assert dict(found[A].values) == {Measure.UTILIZATION: 0.75, Measure.CLOCK: 0.5}


def test_measurements_of_several_agents_add_up_without_those_of_pods_that_left() -> None:
    watch = Watch()
    for pod, load in everyone(d=THROTTLED).items():  # one agent after another
        watch = watch.seen(read(samples({pod: load}), now=1000.0))
    for now in (1000.0, 1120.0):
        watch = watch.seen(read(samples({A: BUSY, D: THROTTLED}), now=now))
        watch = watch.seen(read(samples({B: BUSY, C: BUSY}), now=now))
        _, of_all = watch.judged(GANG, now=now)
        watch, of_three = watch.judged((A, C, D), now=now)
    assert [each.pod for each in of_all] == [each.pod for each in of_three] == [D]
    _, of_two = watch.judged((A, D), now=1120.0)
    assert of_two == (), "two members have no median"


def test_member_that_left_gang_is_forgotten() -> None:
    watch, _ = watched((300, everyone(d=THROTTLED)))
    watch, reports = watch.judged((A, B, C), now=1301.0)
    assert reports == ()
    assert (dict(watch.lagging), D in watch.readings) == ({}, False)
