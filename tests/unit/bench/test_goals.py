"""The goals that are reached, by the output of the benchmarks."""

import dataclasses
import importlib.util
import shlex
from pathlib import Path

import pytest

from bench import all as bench_all
from bench import goals

_GOAL = goals.Goal("Area", "what", "program", lambda reported: reported["ratio"], 1.5)


def _only(monkeypatch: pytest.MonkeyPatch, *made: goals.Goal) -> None:
    monkeypatch.setattr(goals, "GOALS", made)


@pytest.mark.parametrize(("ratio", "reached"), [(1.4, True), (1.5, True), (1.51, False)])
def test_a_number_is_reached_up_to_its_limit(monkeypatch: pytest.MonkeyPatch, ratio: float, *, reached: bool) -> None:
    _only(monkeypatch, _GOAL)
    (result,) = goals.results({"program": {"ratio": ratio}})
    assert result.reached is reached
    assert result.figures()["measured"] == ratio


@pytest.mark.parametrize(
    ("reported", "reason"),
    [({}, "not run"), ({"program": "it fell over"}, "it fell over"), ({"program": {"other": 1}}, "KeyError('ratio')")],
)
def test_unmeasured_goal_is_not_reached(
    monkeypatch: pytest.MonkeyPatch, reported: dict[str, goals.Json | str], reason: str
) -> None:
    _only(monkeypatch, _GOAL)
    (result,) = goals.results(reported)
    assert not result.reached
    assert reason in result.figures()["reason"]


@pytest.mark.parametrize(("times", "reached"), [(499, False), (500, True), (501, True)])
def test_what_must_never_happen_counts_from_enough_times_on(
    monkeypatch: pytest.MonkeyPatch, times: int, *, reached: bool
) -> None:
    _only(monkeypatch, dataclasses.replace(_GOAL, limit=0, times=lambda reported: reported["kills"], least=500))
    (result,) = goals.results({"program": {"ratio": 0, "kills": times}})
    assert result.reached is reached
    assert (result.figures()["times"], result.figures()["least"]) == (times, 500)


def test_program_that_was_not_run_keeps_its_saved_output(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, _GOAL, dataclasses.replace(_GOAL, what="other", program="other"))
    saved = {"programs": {"program": {"ratio": 1.0}, "other": {"ratio": 1.2}}}
    merged = bench_all.merged(saved, {"programs": {"other": {"ratio": 1.6}}})
    assert [each["measured"] for each in merged["numbers"]] == [1.0, 1.6]
    assert not merged["reached"]


def test_program_that_failed_reaches_nothing_by_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No false alarm in 10,000 proofs, none of which passed."""
    _only(monkeypatch, _GOAL)
    (result,) = goals.results({"program": {"ratio": 0.0, goals.EXIT_CODE: 1}})
    assert not result.reached
    assert (result.figures()["measured"], result.figures()["reason"]) == (0.0, "it ended with 1")


@pytest.mark.parametrize("output", ["ended with 1 and no figures", {"lines": [], goals.EXIT_CODE: 1}])
def test_failed_program_without_a_goal_counts(monkeypatch: pytest.MonkeyPatch, output: goals.Json | str) -> None:
    _only(monkeypatch, _GOAL)
    saved = {"programs": {"program": {"ratio": 1.0}}}
    assert bench_all.merged(saved, {"programs": {}})["reached"]
    assert not bench_all.merged(saved, {"programs": {goals.PEERS: output}})["reached"]


def test_exit_code_of_a_program_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "bench"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, code in (("well", 0), ("failed", 3)):
        (package / f"{name}.py").write_text(f"import sys\nprint('{{}}')\nsys.exit({code})\n")
    monkeypatch.chdir(tmp_path)
    well, failed = (bench_all.run(name, ()) for name in ("well", "failed"))
    assert isinstance(well, dict)
    assert isinstance(failed, dict)
    assert (well.get(goals.EXIT_CODE), failed.get(goals.EXIT_CODE)) == (None, 3)


def test_fault_that_could_not_be_tried_is_not_measured() -> None:
    crowd = {"faults": [{"not_tried": "no cgroup", "lost": [], "measured": {}}]}
    reported = {goal.program: crowd for goal in goals.GOALS if goal.program.startswith("faults")}
    (result,) = (each for each in goals.results(reported) if each.goal.program in reported)
    assert result.measured is None
    assert "no cgroup" in result.reason


def test_each_goal_names_an_existing_benchmark() -> None:
    for goal in goals.GOALS:
        name, *_ = shlex.split(goal.program)
        assert importlib.util.find_spec(f"bench.{name}") is not None, goal.program


def test_no_goal_is_named_twice() -> None:
    names = [(goal.area, goal.what) for goal in goals.GOALS]
    assert len(names) == len(set(names))


def test_figures_of_others_come_from_the_same_run() -> None:
    reported = {"gang": {"upstream_jobset": {"failure_to_all_running_ms": [5536.0, 26000.0]}}}
    shown = {result.elsewhere for result in goals.results({goals.PEERS: reported})}
    assert shown == {"", "upstream JobSet: 5.5 s, 26 s"}


def test_without_peers_there_are_no_figures_of_others() -> None:
    assert {result.elsewhere for result in goals.results({})} == {""}
    assert {result.elsewhere for result in goals.results({goals.PEERS: "it fell over"})} == {""}
