"""A fault that an H100 or an H200 reported leads to one restart, of the container that it hit, and of no other.

A fault can come as up to four lines, of which only the last names the process, and NVML can report another code than
the first line. See ``replayed`` for the records.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests import virtual_time
from tests.unit.faults import replayed
from tests.unit.faults.replayed import GPUS, PLACES, RECORDS, Decisions, Place, Timed
from tests.unit.faults.test_pipeline import TRAINER


def decisions(record: dict[str, Any], messages: Sequence[Timed], place: Place) -> Decisions:
    return virtual_time.run(replayed.replay(messages, place=place, launched=replayed.launched_at(record)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", RECORDS)
def test_recorded_fault_restarts_its_container_once_in_its_own_time(name: str, place: str) -> None:
    record, where = RECORDS[name], PLACES[place]
    messages = replayed.as_recorded(record)
    made = decisions(record, messages, where)
    assert made.requested == ([where.faulty] if where.faulty is not None else [])
    assert made.admitted == made.requested
    assert made.decided_at == pytest.approx([replayed.named_at(messages)] * len(made.requested), abs=1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", RECORDS)
def test_recorded_fault_restarts_its_container_once_in_every_order(name: str, place: str) -> None:
    record, where = RECORDS[name], PLACES[place]
    for messages in replayed.in_every_order(record):
        made = decisions(record, messages, where)
        assert made.requested == ([where.faulty] if where.faulty is not None else []), messages
        assert made.admitted == made.requested, messages
        assert made.decided_at == pytest.approx([replayed.named_at(messages)] * len(made.requested), abs=1e-6), messages


@pytest.mark.parametrize("place", ["sole-holder", "not-a-holder"])
@pytest.mark.parametrize("name", RECORDS)
def test_recorded_fault_restarts_container_once_though_its_program_exits(name: str, place: str) -> None:
    record, where = RECORDS[name], PLACES[place]
    for messages in (replayed.as_recorded(record, exits=True), *replayed.in_every_order(record, exits=True)):
        made = decisions(record, messages, where)
        assert set(made.requested) == {where.faulty}, messages
        assert made.admitted == [where.faulty], messages


@pytest.mark.parametrize("name", RECORDS)
def test_program_that_dies_next_to_its_successor_on_standby_takes_nothing_with_it(name: str) -> None:
    record, where = RECORDS[name], PLACES["sole-holder"]
    begin = replayed.as_recorded(record)[-1][0]
    for tenth in range(10):
        messages = replayed.exiting_at(record, begin + tenth / 10)
        played = replayed.replay(messages, place=where, launched=replayed.launched_at(record), standby=True)
        assert virtual_time.run(played).admitted == [where.faulty], messages


@pytest.mark.parametrize("name", RECORDS)
def test_later_fault_of_a_dying_program_does_not_restart_its_successor_on_standby(name: str) -> None:
    record, where = RECORDS[name], PLACES["sole-holder"]
    for twentieth in range(20):
        later = f"32, pid={record['pid']}, name=python3, Ch 00000001"
        messages = replayed.followed_by(record, later, after=twentieth / 20)
        played = replayed.replay(messages, place=where, launched=replayed.launched_at(record), standby=True)
        assert virtual_time.run(played).admitted == [where.faulty], messages


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("place", PLACES)
def test_each_of_recorded_faults_in_a_row_restarts_its_container(place: str, gpu: str) -> None:
    made = decisions(next(iter(GPUS[gpu].values())), replayed.all_in_a_row(gpu), PLACES[place])
    assert made.admitted == ([] if PLACES[place].faulty is None else [TRAINER] * len(GPUS[gpu]))
    assert made.requested == made.admitted


GRAVER = ("48, pid=0, name=, An uncorrectable double bit error has been detected", "79, GPU has fallen off the bus.")


@pytest.mark.parametrize("graver", GRAVER)
@pytest.mark.parametrize("name", RECORDS)
def test_graver_fault_that_follows_joins_the_one_restart(name: str, graver: str) -> None:
    record, where = RECORDS[name], PLACES["sole-holder"]
    for milliseconds in range(0, 400, 20):
        made = decisions(record, replayed.followed_by(record, graver, after=milliseconds / 1000), where)
        assert made.requested == [where.faulty], milliseconds
        assert made.admitted in ([], [where.faulty])
        stopped_before = milliseconds / 1000 > replayed.STOPPED
        assert made.withheld == ([] if stopped_before else made.admitted), milliseconds
        if milliseconds:
            assert made.admitted == [where.faulty], milliseconds


@pytest.mark.parametrize("graver", GRAVER)
@pytest.mark.parametrize("name", RECORDS)
def test_graver_fault_that_comes_first_restarts_nothing(name: str, graver: str) -> None:
    record, where = RECORDS[name], PLACES["sole-holder"]
    assert decisions(record, replayed.followed_by(record, graver, after=-0.001), where).admitted == []


CONTAINED = {
    "pid": 900,
    "kernel": [[5.0, "4,1,71831491,c;NVRM: Xid (PCI:0000:00:06): 94, pid=900, name=python3, Contained: SM (0x1)."]],
    "nvml": [],
    "cuda_error_ms": 100.0,
}
"""A fault that no program causes by itself."""


def test_fault_that_no_program_causes_waits_for_its_cause() -> None:
    messages = replayed.as_recorded(CONTAINED)
    made = decisions(CONTAINED, messages, PLACES["sole-holder"])
    assert made.decided_at == pytest.approx([replayed.named_at(messages) + 0.05], abs=1e-6)


@pytest.mark.parametrize("graver", GRAVER)
def test_cause_that_arrives_in_time_prevents_the_restart(graver: str) -> None:
    messages = replayed.followed_by(CONTAINED, graver, after=0.04)
    made = decisions(CONTAINED, messages, PLACES["sole-holder"])
    assert (made.requested, made.admitted) == ([TRAINER], [])
