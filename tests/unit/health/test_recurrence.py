"""A fault that ends with its process, and comes again with another: the device is suspect."""

import pytest

from agent.health import catalog_file, recurrence
from agent.health.recurrence import History
from agent.history import codec
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator
from agent.model.findings import Finding, FindingKind, Source

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


def told(*came: tuple[Finding, str], device: str = GPU) -> list[FindingKind]:
    """Return what is told after each of the findings, which hit these pods."""
    history, kinds = History(), []
    for finding, pod in came:
        history, repeated = recurrence.noted(history, finding, device=device, pod=pod, catalog=CATALOG)
        kinds += [repeated.kind] if repeated is not None else []
    return kinds


def test_the_same_fault_in_two_pods_within_a_day_makes_the_device_suspect() -> None:
    assert told((xid("31", at=0.0), "a"), (xid("31", at=5 * HOUR), "b")) == [FindingKind.FAULT_REPEATED]


def test_a_program_that_crashes_again_and_again_is_one_program() -> None:
    assert told(*((xid("31", at=at * 300.0), "a") for at in range(50))) == []


@pytest.mark.parametrize("code", ["13", "31"])
def test_what_nvml_tells_once_more_of_one_program_does_not_count(code: str) -> None:
    crashes = [at * 300.0 for at in range(20)]
    twins = [((xid(code, at=at, source=Source.NVML), ""), (xid(code, at=at, gpc="0", tpc="1"), "a")) for at in crashes]
    assert told(*(report for pair in twins for report in pair)) == []


def test_programs_that_nobody_could_name_may_be_one() -> None:
    assert told(*((xid("31", at=at * HOUR), "") for at in range(3))) == []


def test_what_no_program_brings_about_counts_whatever_ran() -> None:
    assert FindingKind.FAULT_REPEATED in told(*((xid("79", at=at * 10 * HOUR), "a") for at in range(3)))


def test_many_lines_of_one_event_are_one_event() -> None:
    assert told(*((xid("31", at=at * 0.01), "") for at in range(500))) == []


def test_what_is_longer_ago_than_the_rule_looks_back_does_not_count() -> None:
    assert told((xid("31", at=0.0), "a"), (xid("31", at=25 * HOUR), "b")) == []


@pytest.mark.parametrize(("tpc", "suspect"), [("1", True), ("2", False)])
def test_only_the_same_part_of_the_gpu_counts_where_the_rule_says_so(tpc: str, suspect: bool) -> None:
    found = told((xid("13", at=0.0, gpc="0", tpc="1"), "a"), (xid("13", at=HOUR, gpc="0", tpc=tpc), "b"))
    assert bool(found) is suspect


def test_a_fault_without_a_rule_leaves_no_trace() -> None:
    history, repeated = recurrence.noted(History(), xid("106", at=0.0), device=GPU, catalog=CATALOG)
    assert (history, repeated) == (History(), None)


def test_an_operators_word_ends_the_count_for_that_device() -> None:
    history, _ = recurrence.noted(History(), xid("31", at=0.0), device=GPU, pod="a", catalog=CATALOG)
    history, _ = recurrence.noted(history, xid("31", at=0.0), device=OTHER, pod="a", catalog=CATALOG)
    word = Finding(Source.OPERATOR, FindingKind.CLEARED, "", DeviceLocator(), ActionClass.NONE, observed_at=1.0)
    history, _ = recurrence.noted(history, word, device=GPU, catalog=CATALOG)
    assert {fault.device for fault in history.faults} == {OTHER}


def test_what_is_remembered_is_bounded() -> None:
    history = History()
    for at in range(10_000):
        history, _ = recurrence.noted(history, xid("31", at=at * 1.0), device=GPU, pod=str(at), catalog=CATALOG)
    assert sum(map(len, history.faults.values())) == recurrence.MOST_TIMES
    later = xid("13", at=1_000_000.0, gpc="0", tpc="1")
    history, _ = recurrence.noted(history, later, device=GPU, catalog=CATALOG)
    assert len(history.faults) == 1


def test_it_is_kept_over_restarts_of_the_agent() -> None:
    history, _ = recurrence.noted(History(), xid("13", at=0.5, gpc="0", tpc="1"), device=GPU, pod="a", catalog=CATALOG)
    assert codec.recurrence_from_json(codec.recurrence_to_json(history)) == history
