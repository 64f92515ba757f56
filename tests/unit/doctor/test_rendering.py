"""The report as text and as JSON."""

import json

import click
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.doctor import rendering
from kubemend.agent.doctor.checks import EXIT_DOES_NOT_WORK, EXIT_WORKS, Check, Report, Result

REPORT = Report(
    node="n1",
    checks=(
        Check("container-runtime", Result.OK, "containerd 2.1.9"),
        Check("kubelet", Result.WARN, "kubelet v1.34.1 freezes", "use 1.35"),
        Check("nvml", Result.FAIL, "GPU is lost", "run nvidia-smi"),
        Check("node", Result.UNKNOWN, "no answer"),
        Check("log-links", Result.NOT_NEEDED, "turned off"),
    ),
)

TEXT = """\
ok       container-runtime  containerd 2.1.9
warn     kubelet            kubelet v1.34.1 freezes
                            -> use 1.35
FAIL     nvml               GPU is lost
                            -> run nvidia-smi
UNKNOWN  node               no answer
-        log-links          turned off

node n1: 1 ok, 1 with a warning, 1 failed, 1 unknown, 1 not needed"""


def test_text_is_aligned_with_each_hint_below_its_check() -> None:
    assert rendering.text(REPORT, colour=False) == TEXT


def test_colours_change_only_colours() -> None:
    coloured = rendering.text(REPORT, colour=True)

    assert coloured != TEXT
    assert click.unstyle(coloured) == TEXT


def test_long_lines_are_wrapped_without_loss() -> None:
    words = " ".join(f"word{number}" for number in range(100))

    text = rendering.text(Report(node="n", checks=(Check("a", Result.FAIL, words, words),)), colour=False)

    assert max(map(len, text.splitlines())) <= 120
    assert text.split().count("word99") == 2


def test_json_object_agrees_with_the_exit_code() -> None:
    body = rendering.as_json(REPORT)

    assert json.loads(json.dumps(body)) == body
    assert (body["node"], body["works"]) == ("n1", False)
    assert body["checks"][1] == {
        "name": "kubelet",
        "result": "warn",
        "what": "kubelet v1.34.1 freezes",
        "hint": "use 1.35",
    }


@given(st.lists(st.sampled_from(Result)))
def test_worst_result_decides_the_exit_code(results: list[Result]) -> None:
    report = Report(node="n", checks=tuple(Check("a", result, "what") for result in results))

    bad = {Result.FAIL, Result.UNKNOWN} & set(results)
    assert report.exit_code == (EXIT_DOES_NOT_WORK if bad else EXIT_WORKS)


@given(st.text(), st.text(), st.sampled_from(Result), st.booleans())
def test_any_text_can_be_rendered(what: str, hint: str, result: Result, colour: bool) -> None:
    report = Report(node="n", checks=(Check("a", result, what, hint),))

    assert rendering.text(report, colour=colour)
