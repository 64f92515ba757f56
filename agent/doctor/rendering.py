"""The report as text for people and as an object for programs. Pure."""

import textwrap
from collections import Counter
from typing import Any, Final

import click

from agent.doctor.checks import Check, Report, Result

_WORDS: Final = {
    Result.OK: "ok",
    Result.WARN: "warn",
    Result.FAIL: "FAIL",
    Result.UNKNOWN: "UNKNOWN",
    Result.NOT_NEEDED: "-",
}
_COLOURS: Final = {
    Result.OK: "green",
    Result.WARN: "yellow",
    Result.FAIL: "red",
    Result.UNKNOWN: "magenta",
    Result.NOT_NEEDED: "bright_black",
}
_COUNTED: Final = {
    Result.OK: "ok",
    Result.WARN: "with a warning",
    Result.FAIL: "failed",
    Result.UNKNOWN: "unknown",
    Result.NOT_NEEDED: "not needed",
}
_WIDTH: Final = 120
_WORD_WIDTH: Final = max(map(len, _WORDS.values()))


def text(report: Report, *, colour: bool) -> str:
    """Return the report as aligned lines, each mend below what it mends; ``colour`` is for terminals."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    lines = [line for check in report.checks for line in _lines(check, name_width=name_width, colour=colour)]
    counts = Counter(check.result for check in report.checks)
    total = ", ".join(f"{counts[result]} {words}" for result, words in _COUNTED.items() if counts[result])
    return "\n".join((*lines, "", f"node {report.node}: {total}"))


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as an object. ``works`` is what the exit code says."""
    return {
        "node": report.node,
        "works": report.works,
        "checks": [
            {"name": check.name, "result": check.result.value, "what": check.what, "mend": check.mend}
            for check in report.checks
        ],
    }


def _lines(check: Check, *, name_width: int, colour: bool) -> list[str]:
    word = f"{_WORDS[check.result]:<{_WORD_WIDTH}}"
    shown = click.style(word, fg=_COLOURS[check.result]) if colour else word
    indent = " " * (_WORD_WIDTH + 2 + name_width + 2)
    first, *rest = _wrapped(check.what, indent=indent)
    mend = _wrapped(f"-> {check.mend}", indent=indent) if check.mend else []
    return [f"{shown}  {check.name:<{name_width}}  {first}", *(f"{indent}{line}" for line in (*rest, *mend))]


def _wrapped(words: str, *, indent: str) -> list[str]:
    width = _WIDTH - len(indent)
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ") or [""]
