"""The rules for faults that occur repeatedly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.catalog.repeats import BURST_SECONDS, Repeats
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind

DAY = 86_400.0
TWICE_A_DAY = Repeats(count=2, within=DAY, action=ActionClass.OBSERVE)


def xid(code: int) -> FaultKey:
    return FaultKey(FindingKind.XID, str(code))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_file.builtin()


@pytest.mark.parametrize(
    ("times", "reached"),
    [
        ((), False),
        ((0.0,), False),
        ((0.0, BURST_SECONDS - 1), False),
        ((0.0, BURST_SECONDS), True),
        ((0.0, DAY), True),
        ((0.0, DAY + 1), False),
        ((0.0, DAY + 1, DAY + BURST_SECONDS + 1), True),
    ],
)
def test_two_events_within_a_day_count_twice_and_many_lines_once(times: tuple[float, ...], reached: bool) -> None:
    assert TWICE_A_DAY.reached(times) is reached
    assert TWICE_A_DAY.reached(reversed(times)) is reached


@given(st.lists(st.floats(0, 1e6)), st.lists(st.floats(0, 1e6)), st.integers(2, 5))
def test_order_is_irrelevant_and_later_times_remove_nothing(times: list[float], more: list[float], count: int) -> None:
    rule = Repeats(count=count, within=DAY, action=ActionClass.OBSERVE)
    later = [max(times, default=0.0) + each for each in more]

    assert rule.reached(times) == rule.reached(sorted(times, reverse=True))
    assert rule.reached(times + later) or not rule.reached(times)


@given(st.lists(st.floats(0, BURST_SECONDS, exclude_max=True)))
def test_one_burst_is_never_a_repetition(times: list[float]) -> None:
    assert not TWICE_A_DAY.reached(times)


def test_catalog_gives_action_for_repetition(catalog: Catalog) -> None:
    twice, five_times = (0.0, 3600.0), tuple(range(0, 5 * 3600, 3600))

    assert catalog.after_repeats(xid(31), twice) is ActionClass.OBSERVE
    assert catalog.after_repeats(xid(31), twice[:1]) is ActionClass.NONE
    assert catalog.after_repeats(xid(39), twice) is ActionClass.NONE
    assert catalog.after_repeats(xid(39), five_times) is ActionClass.ASK_DRIVER
    assert catalog.after_repeats(xid(79), five_times) is ActionClass.REPLACE
    assert catalog.after_repeats(xid(43), five_times) is ActionClass.NONE
    assert catalog.after_repeats(xid(999), five_times) is ActionClass.NONE


def test_xid_13_counts_only_at_the_same_place(catalog: Catalog) -> None:
    repeats = catalog.entries[xid(13)].repeats

    assert repeats is not None
    assert repeats.same == ("gpc", "tpc")


def test_operator_changes_the_repeat_count(catalog: Catalog) -> None:
    merged = catalog_file.merged(
        catalog,
        "schema: 1\nfaults:\n  - {kind: Xid, codes: 31, repeats: {count: 3, within: 10m, class: ResetDevice}}\n",
    )

    assert merged.after_repeats(xid(31), (0.0, 200.0, 400.0)) is ActionClass.RESET_DEVICE
    assert merged.action(xid(31)) is ActionClass.RESTART_APP


def test_fault_from_a_line_is_over_after_absence(catalog: Catalog) -> None:
    """Every fault that degrades a device and comes from a line in a log must be able to end."""
    reported_by_lines = {FindingKind.AER_NON_FATAL, FindingKind.NIC_TIMEOUT, FindingKind.NIC_HOT}

    over = {key.kind: catalog.over_after(key) for key in catalog.entries if catalog.over_after(key) is not None}

    assert over.keys() == reported_by_lines
    assert all(catalog.action(FaultKey(kind)) is ActionClass.OBSERVE for kind in over)
    assert catalog.over_after(FaultKey(FindingKind.NIC_HOT)) == 600.0
    assert catalog.over_after(xid(999)) is None
