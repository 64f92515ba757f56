"""The report as text for people and as an object for programs. Pure."""

import textwrap
from collections import Counter
from typing import Any, Final

import click

from kubemend.agent.doctor.checks import Check, Report, Result

_LABELS: Final = {
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
_LABEL_WIDTH: Final = max(map(len, _LABELS.values()))


def text(report: Report, *, colour: bool) -> str:
    """Return the report as aligned lines, each hint below its check; ``colour`` is for terminals."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    lines = [line for check in report.checks for line in _lines(check, name_width=name_width, colour=colour)]
    counts = Counter(check.result for check in report.checks)
    total = ", ".join(f"{counts[result]} {name}" for result, name in _COUNTED.items() if counts[result])
    return "\n".join((*lines, "", f"node {report.node}: {total}"))


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as an object. ``works`` corresponds to the exit code."""
    return {
        "node": report.node,
        "works": report.works,
        "checks": [
            {"name": check.name, "result": check.result.value, "what": check.what, "hint": check.hint}
            for check in report.checks
        ],
    }


def _lines(check: Check, *, name_width: int, colour: bool) -> list[str]:
    label = f"{_LABELS[check.result]:<{_LABEL_WIDTH}}"
    shown = click.style(label, fg=_COLOURS[check.result]) if colour else label
    indent = " " * (_LABEL_WIDTH + 2 + name_width + 2)
    first, *rest = _wrapped(check.what, indent=indent)
    hint = _wrapped(f"-> {check.hint}", indent=indent) if check.hint else []
    return [f"{shown}  {check.name:<{name_width}}  {first}", *(f"{indent}{line}" for line in (*rest, *hint))]


def _wrapped(text: str, *, indent: str) -> list[str]:
    width = _WIDTH - len(indent)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ") or [""]
