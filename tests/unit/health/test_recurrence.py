"""A fault that ends with its process and recurs with another makes the device suspect."""

from dataclasses import replace

import pytest

from kubemend.agent.clients.journal import codec
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.health.state import recurrence
from kubemend.agent.health.state.recurrence import Fault, History, Occurrence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source

CATALOG = catalog_file.builtin()
GPU, OTHER = "GPU-1", "GPU-2"
HOUR = 3600.0


def xid(code: str, *, at: float, source: Source = Source.KERNEL_LOG, **evidence: str) -> Finding:
    return Finding(
        source=source,
        kind=FindingKind.XID,
        code=code,
        device=DeviceLocator(),
        action=ActionClass.RESTART_APP,
        observed_at=at,
        evidence=evidence,
    )


def recurred(*came: tuple[Finding, str], device: str = GPU) -> list[FindingKind]:
    """Return the finding emitted after each of the findings, which hit these pods."""
    history, kinds = History(), []
    for finding, pod in came:
        history, repeated = recurrence.noted(history, finding, device=device, pod=pod, catalog=CATALOG)
        kinds += [repeated.kind] if repeated is not None else []
    return kinds


def test_same_fault_in_two_pods_within_a_day_makes_device_suspect() -> None:
    assert recurred((xid("31", at=0.0), "a"), (xid("31", at=5 * HOUR), "b")) == [FindingKind.FAULT_REPEATED]


def test_program_that_crashes_repeatedly_counts_once() -> None:
    assert recurred(*((xid("31", at=at * 300.0), "a") for at in range(50))) == []


@pytest.mark.parametrize("code", ["13", "31"])
def test_repetition_by_nvml_does_not_count(code: str) -> None:
    crashes = [at * 300.0 for at in range(20)]
    twins = [((xid(code, at=at, source=Source.NVML), ""), (xid(code, at=at, gpc="0", tpc="1"), "a")) for at in crashes]
    assert recurred(*(report for pair in twins for report in pair)) == []


def test_unknown_programs_count_as_one() -> None:
    assert recurred(*((xid("31", at=at * HOUR), "") for at in range(3))) == []


def test_fault_not_caused_by_programs_always_counts() -> None:
    assert FindingKind.FAULT_REPEATED in recurred(*((xid("79", at=at * 10 * HOUR), "a") for at in range(3)))


def test_many_lines_of_one_event_count_once() -> None:
    assert recurred(*((xid("31", at=at * 0.01), "") for at in range(500))) == []


def test_many_lines_of_one_event_displace_no_earlier_event_and_count_once_in_the_message() -> None:
    lines = [begin + at * 0.01 for begin in (0.0, 10 * HOUR, 20 * HOUR) for at in range(100)]
    history, found = History(), None
    for at in lines:
        history, found = recurrence.noted(history, xid("79", at=at), device=GPU, pod="a", catalog=CATALOG)
    assert found is not None
    assert (found.action, found.text) == (ActionClass.REPLACE, "Xid 79 came 3 times within 72 h")


def test_occurrences_before_the_window_do_not_count() -> None:
    assert recurred((xid("31", at=0.0), "a"), (xid("31", at=25 * HOUR), "b")) == []


def test_other_faults_in_between_do_not_reset_the_count() -> None:
    came = [(xid("31", at=0.0), "a"), (xid("79", at=HOUR), "a"), (xid("31", at=2 * HOUR), "b")]
    assert recurred(*came) == [FindingKind.FAULT_REPEATED]


def test_recurrence_is_a_fault_of_the_device_with_the_number_within_the_window() -> None:
    history, found = History(), None
    for at, pod in ((0.0, "a"), (23 * HOUR, "b"), (25 * HOUR, "c")):
        finding = replace(xid("31", at=at), pid=7)
        history, found = recurrence.noted(history, finding, device=GPU, pod=pod, catalog=CATALOG)
    assert found is not None
    assert (found.code, found.pid, found.action) == ("", None, ActionClass.OBSERVE)
    assert found.text == f"{finding.title} came 2 times within 24 h"


@pytest.mark.parametrize(("tpc", "suspect"), [("1", True), ("2", False)])
def test_rule_with_place_counts_only_the_same_place(tpc: str, suspect: bool) -> None:
    found = recurred((xid("13", at=0.0, gpc="0", tpc="1"), "a"), (xid("13", at=HOUR, gpc="0", tpc=tpc), "b"))
    assert bool(found) is suspect


def test_other_fault_in_between_drops_nothing_that_is_still_in_the_window() -> None:
    came = [(xid("31", at=0.0), "a"), (xid("31", at=20 * HOUR), "b")]
    later = [(xid("79", at=30 * HOUR), "b"), (xid("31", at=40 * HOUR), "c")]
    assert recurred(*came, *later) == [FindingKind.FAULT_REPEATED] * 2


@pytest.mark.parametrize("code", ["43", "99999"], ids=["without-a-rule", "unknown"])
def test_stored_fault_that_a_new_catalog_no_longer_counts_is_dropped(code: str) -> None:
    stored = Fault(GPU, FaultKey(FindingKind.XID, code))
    history = History({stored: (Occurrence(0.0),)})
    after, _ = recurrence.noted(history, xid("31", at=1.0), device=GPU, pod="a", catalog=CATALOG)
    assert [fault.key.code for fault in after.faults] == ["31"]


def test_fault_without_rule_is_not_stored() -> None:
    history, repeated = recurrence.noted(History(), xid("106", at=0.0), device=GPU, catalog=CATALOG)
    assert (history, repeated) == (History(), None)


def test_clear_command_resets_the_count_of_that_device() -> None:
    history, _ = recurrence.noted(History(), xid("31", at=0.0), device=GPU, pod="a", catalog=CATALOG)
    history, _ = recurrence.noted(history, xid("31", at=0.0), device=OTHER, pod="a", catalog=CATALOG)
    word = Finding(Source.OPERATOR, FindingKind.CLEARED, "", DeviceLocator(), ActionClass.NONE, observed_at=1.0)
    history, _ = recurrence.noted(history, word, device=GPU, catalog=CATALOG)
    assert {fault.device for fault in history.faults} == {OTHER}


def test_history_is_bounded() -> None:
    history = History()
    for at in range(10_000):
        history, _ = recurrence.noted(history, xid("31", at=at * 1.0), device=GPU, pod=str(at), catalog=CATALOG)
    assert sum(map(len, history.faults.values())) == recurrence.MOST_TIMES
    later = xid("13", at=1_000_000.0, gpc="0", tpc="1")
    history, _ = recurrence.noted(history, later, device=GPU, catalog=CATALOG)
    assert len(history.faults) == 1


def test_history_survives_agent_restarts() -> None:
    history, _ = recurrence.noted(History(), xid("13", at=0.5, gpc="0", tpc="1"), device=GPU, pod="a", catalog=CATALOG)
    assert codec.recurrence_from_json(codec.recurrence_to_json(history)) == history
