"""How a report reads, for people and for programs."""

import json

import click
from hypothesis import given
from hypothesis import strategies as st

from agent.doctor import rendering
from agent.doctor.checks import EXIT_DOES_NOT_WORK, EXIT_WORKS, Check, Report, Result

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


def test_text_is_aligned_with_each_mend_below_what_it_mends() -> None:
    assert rendering.text(REPORT, colour=False) == TEXT


def test_colours_change_nothing_but_the_colours() -> None:
    coloured = rendering.text(REPORT, colour=True)

    assert coloured != TEXT
    assert click.unstyle(coloured) == TEXT


def test_long_lines_are_wrapped_and_no_word_is_lost() -> None:
    words = " ".join(f"word{number}" for number in range(100))

    text = rendering.text(Report(node="n", checks=(Check("a", Result.FAIL, words, words),)), colour=False)

    assert max(map(len, text.splitlines())) <= 120
    assert text.split().count("word99") == 2


def test_an_object_can_be_written_as_json_and_says_what_the_exit_code_says() -> None:
    body = rendering.as_json(REPORT)

    assert json.loads(json.dumps(body)) == body
    assert (body["node"], body["works"]) == ("n1", False)
    assert body["checks"][1] == {
        "name": "kubelet",
        "result": "warn",
        "what": "kubelet v1.34.1 freezes",
        "mend": "use 1.35",
    }


@given(st.lists(st.sampled_from(Result)))
def test_the_worst_result_decides_the_exit_code(results: list[Result]) -> None:
    report = Report(node="n", checks=tuple(Check("a", result, "what") for result in results))

    bad = {Result.FAIL, Result.UNKNOWN} & set(results)
    assert report.exit_code == (EXIT_DOES_NOT_WORK if bad else EXIT_WORKS)


@given(st.text(), st.text(), st.sampled_from(Result), st.booleans())
def test_any_words_can_be_shown(what: str, mend: str, result: Result, colour: bool) -> None:
    report = Report(node="n", checks=(Check("a", result, what, mend),))

    assert rendering.text(report, colour=colour)
