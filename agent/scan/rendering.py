"""The report as a table for people and as an object for programs. Pure."""

from collections import Counter
from typing import Any, Final

import click
import tabulate

from kubemend.agent.model.verdicts import Health
from kubemend.agent.scan.report import Report, Row
from kubemend.common.kube import timestamps

_HEADERS: Final = ("DEVICE", "NAME", "PCI", "VERDICT", "ACTION", "REASON", "SINCE", "MESSAGE")
_COLOURS: Final = {
    Health.HEALTHY: "green",
    Health.DEGRADED: "yellow",
    Health.UNHEALTHY: "red",
    Health.UNKNOWN: "magenta",
}
_NOTHING = "-"


def text(report: Report, *, colour: bool) -> str:
    """Return the devices as a table and the rest below it, one line each; ``colour`` is for terminals."""
    table = [tabulate.tabulate(_table(report, colour=colour), _HEADERS, tablefmt="plain", disable_numparse=True), ""]
    problems = [
        f"{_styled(Health.UNKNOWN, colour=colour)}  {each.part}: {each.what}; {each.hint}" for each in report.unseen
    ]
    notes = [f"note: {note}" for note in report.notes]
    return "\n".join((*(table if report.rows else ()), *problems, *notes, _total(report)))


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as an object. ``health`` corresponds to the exit code."""
    return {
        "health": report.health.value,
        "devices": [_object(row) for row in report.rows],
        "unseen": [{"part": each.part, "what": each.what, "hint": each.hint} for each in report.unseen],
        "notes": list(report.notes),
    }


def _table(report: Report, *, colour: bool) -> list[list[str]]:
    return [[cell or _NOTHING for cell in _cells(row, colour=colour)] for row in report.rows]


def _cells(row: Row, *, colour: bool) -> tuple[str, ...]:
    verdict = row.verdict
    return (
        row.label,
        row.name,
        row.pci,
        _styled(verdict.health, colour=colour),
        verdict.action.value,
        verdict.reason,
        timestamps.rfc3339(verdict.since) if verdict.since else "",
        verdict.message,
    )


def _styled(health: Health, *, colour: bool) -> str:
    return click.style(health.value, fg=_COLOURS[health]) if colour else health.value


def _total(report: Report) -> str:
    if not report.rows:
        return "no device was seen" if report.unseen else "this machine has no GPU and no NIC"
    counts = Counter(row.verdict.health for row in report.rows)
    healths = ", ".join(f"{counts[health]} {health.value.lower()}" for health in Health if counts[health])
    return f"{len(report.rows)} {'device' if len(report.rows) == 1 else 'devices'}: {healths}"


def _object(row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "device": verdict.device,
        "label": row.label,
        "name": row.name,
        "pci": row.pci,
        "health": verdict.health.value,
        "action": verdict.action.value,
        "reason": verdict.reason,
        "message": verdict.message,
        "since": verdict.since,
    }
