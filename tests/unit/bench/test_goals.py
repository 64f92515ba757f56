"""Which numbers are reached, by what the benchmarks print."""

import importlib.util

import pytest

from bench import goals

_GOAL = goals.Goal("Area", "what", "program", lambda told: told["ratio"], 1.5)


def _only(monkeypatch: pytest.MonkeyPatch, *made: goals.Goal) -> None:
    monkeypatch.setattr(goals, "GOALS", made)


@pytest.mark.parametrize(("ratio", "reached"), [(1.4, True), (1.5, True), (1.51, False)])
def test_a_number_is_reached_up_to_its_limit(monkeypatch: pytest.MonkeyPatch, ratio: float, *, reached: bool) -> None:
    _only(monkeypatch, _GOAL)
    (standing,) = goals.standings({"program": {"ratio": ratio}})
    assert standing.reached is reached
    assert standing.figures()["measured"] == ratio


@pytest.mark.parametrize(
    ("told", "why"),
    [({}, "not run"), ({"program": "it fell over"}, "it fell over"), ({"program": {"other": 1}}, "KeyError('ratio')")],
)
def test_what_was_not_measured_is_not_reached(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, goals.Json | str], why: str
) -> None:
    _only(monkeypatch, _GOAL)
    (standing,) = goals.standings(told)
    assert not standing.reached
    assert why in standing.figures()["why"]


def test_each_goal_names_a_benchmark_that_there_is() -> None:
    for goal in goals.GOALS:
        assert importlib.util.find_spec(f"bench.{goal.program}") is not None, goal.program


def test_no_goal_is_named_twice() -> None:
    names = [(goal.area, goal.what) for goal in goals.GOALS]
    assert len(names) == len(set(names))
