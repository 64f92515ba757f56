"""The fault suite and docs/operations.md make the same promises, and a suite without checks proves nothing."""

import re
from pathlib import Path
from typing import Any, cast

import pytest

from bench.faults import suite
from bench.faults.reporting import Kind, NotTriedError, Reported
from bench.faults.scale import SHORT, Scale
from bench.faults.stage import Stage
from bench.faults.suite import Fault

TEXT = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
SECTION = TEXT.split("\n## What it withstands\n")[1].split("\n## ")[0]


def promises() -> list[str]:
    """Return the promises of the section: the sentences in bold type, however their lines are broken."""
    return [" ".join(each.split()) for each in re.findall(r"\*\*(.+?)\*\*", SECTION, re.DOTALL)]


def test_promises_and_faults_correspond() -> None:
    assert promises() == [fault.promise for fault in suite.FAULTS]


def test_no_fault_has_the_name_of_another() -> None:
    assert len({fault.name for fault in suite.FAULTS}) == len(suite.FAULTS)


def test_short_run_omits_slow_faults_unless_named() -> None:
    slow = {fault.name for fault in suite.FAULTS if fault.slow}
    assert slow
    assert {fault.name for fault in suite.chosen((), short=True)} == {fault.name for fault in suite.FAULTS} - slow
    assert suite.chosen((), short=False) == suite.FAULTS
    assert {fault.name for fault in suite.chosen(slow, short=True)} == slow


class OneNode:
    """The part of a stage that the suite itself needs."""

    def __init__(self) -> None:
        self.nodes = [self]
        self.kinds = {"api": "none"}
        self.directory = Path()


async def reported(tmp_path: Path, tried: Any) -> dict[str, Any]:
    faults = [Fault("one", "It holds.", tried), Fault("two", "It holds.", fine)]
    stage = cast("Stage", OneNode())
    return await suite.run(stage, faults, scale=SHORT, directory=tmp_path)


async def fine(stage: Stage, scale: Scale, reported: Reported) -> None:
    reported.keeps(Kind.ROUND, "a round", holds=True)


async def nothing(stage: Stage, scale: Scale, reported: Reported) -> None:
    reported.tries("nothing")


async def breaks(stage: Stage, scale: Scale, reported: Reported) -> None:
    reported.keeps(Kind.ROUND, "a round", holds=True)
    raise TimeoutError("it did not come")


async def loses(stage: Stage, scale: Scale, reported: Reported) -> None:
    reported.keeps(Kind.VERDICT, "the verdict of GPU-0", holds=False)


async def cannot(stage: Stage, scale: Scale, reported: Reported) -> None:
    raise NotTriedError("no memory cgroup can be made")


async def test_untried_fault_is_reported_and_not_counted(tmp_path: Path) -> None:
    printed = await reported(tmp_path, cannot)
    assert (printed["faults_tried"], printed["lost"]) == (1, 0)
    assert printed["faults"][0]["not_tried"] == "no memory cgroup can be made"


async def test_nothing_is_lost_where_everything_holds(tmp_path: Path) -> None:
    printed = await reported(tmp_path, fine)
    assert (printed["faults_tried"], printed["lost"]) == (2, 0)


@pytest.mark.parametrize(
    ("tried", "loss"),
    [
        (nothing, "unreported: nothing was checked"),
        (breaks, "unreported: TimeoutError: it did not come"),
        (loses, "verdict: the verdict of GPU-0"),
    ],
)
async def test_failed_check_is_a_loss_and_the_next_fault_is_tried(tmp_path: Path, tried: Any, loss: str) -> None:
    printed = await reported(tmp_path, tried)
    assert (printed["faults_tried"], printed["lost"]) == (2, 1)
    assert printed["faults"][0]["lost"] == [loss]
    assert printed["faults"][0]["promised"] == "It holds."


def test_repeated_figure_becomes_a_list() -> None:
    made = Reported()
    for value in (1, 2, 3):
        made.measures("ms", value)
    assert made.measured == {"ms": [1, 2, 3]}
