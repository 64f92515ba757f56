"""The report as a table for people and as an object for programs. Pure."""

from collections import Counter
from typing import Any, Final

import click
import tabulate

from kubemend.agent.prove.report import GpuRow, Report
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict

_HEADERS: Final = ("DEVICE", "NAME", "PCI", "PROOF", "REASON", "MESSAGE")
_COLOURS: Final = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "red",
    Outcome.SKIPPED: "yellow",
    Outcome.UNKNOWN: "magenta",
}
_NOTHING = "-"
_MOST_PAIRS: Final = 4


def text(report: Report, *, colour: bool) -> str:
    """Return the GPUs as a table and the rest below it, one line each; ``colour`` is for terminals."""
    lines = []
    if report.gpus:
        cells = [[cell or _NOTHING for cell in _cells(row, colour=colour)] for row in report.gpus]
        lines += [tabulate.tabulate(cells, _HEADERS, tablefmt="plain", disable_numparse=True), ""]
    for pair in report.pairs:
        if pair.verdict.outcome is not Outcome.PASSED and pair.verdict.reason is not Reason.NO_PEER_ACCESS:
            styled = _styled(pair.verdict.outcome, colour=colour)
            lines.append(f"{styled}  {pair.source} to {pair.target}: {_reason(pair.verdict)}: {pair.verdict.message}")
    lines += _without_access(report, colour=colour)
    lines += [
        f"{_styled(Outcome.UNKNOWN, colour=colour)}  {each.part}: {each.what}; {each.hint}" for each in report.unseen
    ]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join((*lines, _total(report)))


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as an object. ``outcome`` corresponds to the exit code."""
    return {
        "outcome": report.outcome.value,
        "gpus": [
            {"device": row.uuid, "label": row.label, "name": row.name, "pci": row.pci, **_object(row.verdict)}
            for row in report.gpus
        ],
        "pairs": [{"source": row.source, "target": row.target, **_object(row.verdict)} for row in report.pairs],
        "unseen": [{"part": each.part, "what": each.what, "hint": each.hint} for each in report.unseen],
        "notes": list(report.notes),
    }


def _without_access(report: Report, *, colour: bool) -> list[str]:
    """Return one line for all pairs without access: on a machine with eight GPUs these can be 56."""
    pairs = [each for each in report.pairs if each.verdict.reason is Reason.NO_PEER_ACCESS]
    if not pairs:
        return []
    shown = ", ".join(f"{each.source} to {each.target}" for each in pairs[:_MOST_PAIRS])
    more = f" and {len(pairs) - _MOST_PAIRS} more" if len(pairs) > _MOST_PAIRS else ""
    first = pairs[0].verdict
    return [f"{_styled(first.outcome, colour=colour)}  {shown}{more}: {_reason(first)}: {first.message}"]


def _cells(row: GpuRow, *, colour: bool) -> tuple[str, ...]:
    verdict = row.verdict
    return (
        row.label,
        row.name,
        row.pci,
        _styled(verdict.outcome, colour=colour),
        _reason(verdict),
        verdict.message or _rates(verdict),
    )


def _rates(verdict: Verdict) -> str:
    tests = verdict.evidence.get("tests", {})
    rates = ((name, each.get("gigabytes_per_second")) for name, each in tests.items())
    return ", ".join(f"{name} {rate:g} GB/s" for name, rate in rates if rate is not None)


def _styled(outcome: Outcome, *, colour: bool) -> str:
    return click.style(outcome.value, fg=_COLOURS[outcome]) if colour else outcome.value


def _reason(verdict: Verdict) -> str:
    return verdict.reason.value if verdict.reason is not None else ""


def _total(report: Report) -> str:
    if not report.gpus:
        return "no GPU was seen" if report.unseen else "this machine has no GPU"
    counts = Counter(row.verdict.outcome for row in report.gpus)
    outcomes = ", ".join(f"{counts[each]} {each.value.lower()}" for each in Outcome if counts[each])
    pairs = Counter(row.verdict.outcome for row in report.pairs)
    copies = ", ".join(f"{pairs[each]} {each.value.lower()}" for each in Outcome if pairs[each])
    total = f"{len(report.gpus)} {'GPU' if len(report.gpus) == 1 else 'GPUs'}: {outcomes}"
    return f"{total}; copies between them: {copies}" if copies else total


def _object(verdict: Verdict) -> dict[str, Any]:
    return {
        "outcome": verdict.outcome.value,
        "reason": _reason(verdict),
        "message": verdict.message,
        "evidence": dict(verdict.evidence),
    }
