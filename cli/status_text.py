"""Format gangs as tables for people and as an object for programs. Pure."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import click
import tabulate

from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ReportedHealth
from kubemend.cli import spans
from kubemend.cli.gangs_view import GangView, MemberView, Report, RoundView, State
from kubemend.common import budgets
from kubemend.common.kube import timestamps
from kubemend.controller.restarts import objects

ROUNDS_SHOWN: Final = 10

_NOTHING: Final = "-"
_REFUSED: Final = "Refused"
_GANG_HEADERS: Final = ("NAMESPACE", "GANG", "MEMBERS", "NODES", "DEVICES", "BUDGET", "LAST ROUND", "AGE")
_MEMBER_HEADERS: Final = ("MEMBER", "NODE", "STATE", "RESTARTS", "DEVICES", "LAST RESTART")
_SPARE: Final = "WARM SPARE"
_KUBELET: Final = "KUBELET'S DEVICES"
_ROUND_HEADERS: Final = ("ATTEMPT", "RESTART", "PHASE", "CAUSE", "MEMBER", "NODE", "DECISION", "TOOK", "AGE")
_STATE_COLOURS: Final = {State.WELL: "green", State.UNKNOWN: "magenta", State.ILL: "red"}
_PHASE_COLOURS: Final = {"Done": "green", "Degraded": "yellow", "Failed": "red", "Refused": "yellow"}


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """Set the output style: ``colour`` is for terminals, ``now`` (Unix time) is the reference of ages."""

    now: float
    colour: bool = False

    def paint(self, text: str, colour: str | None) -> str:
        """Return a text in a colour, if colours are enabled."""
        return click.style(text, fg=colour) if self.colour and colour else text


def overview(report: Report, *, style: Style) -> str:
    """Return one line for each gang that kubemend manages, and the number of others."""
    ours = [gang for gang in report.gangs if gang.is_ours]
    others = len(report.gangs) - len(ours)
    lines = [_table(_GANG_HEADERS, [_gang_row(gang, style=style) for gang in ours])] if ours else ["no gang"]
    lines += _notes(report, ours)
    if others:
        lines.append(f"note: {others} other gangs have not opted in (annotation kubemend.io/restart: InPlace)")
    return "\n".join(lines)


def details(gang: GangView, report: Report, *, style: Style) -> str:
    """Return all details of one gang."""
    head = f"{gang.key}: {_readiness(gang)} members ready on {_count(len(gang.nodes), 'node')}, budget {_budget(gang)}"
    lines = [head, ""]
    if gang.members:
        lines += [_members(gang.members, style=style), ""]
    if gang.rounds:
        shown = gang.rounds[:ROUNDS_SHOWN]
        lines += [_table(_ROUND_HEADERS, [_round_row(each, style=style) for each in shown]), ""]
        if hidden := len(gang.rounds) - len(shown):
            lines.append(f"note: {hidden} older rounds are not shown: kubectl get restarts -n {gang.key.namespace}")
        lines.append(_last_reason(gang.rounds[0], namespace=gang.key.namespace))
    elif report.whole:
        lines.append("no round yet")
    return "\n".join((*lines, *_notes(report, [gang])))


def as_json(report: Report) -> dict[str, Any]:
    """Return the gangs as an object. ``state`` determines the exit code."""
    gangs = [_gang_object(gang) for gang in report.gangs]
    return {"state": report.state.value, "gangs": gangs, "notes": list(report.notes)}


def _gang_row(gang: GangView, *, style: Style) -> list[str]:
    last = gang.rounds[0] if gang.rounds else None
    stands = all(member.stands for member in gang.members)
    return [
        gang.key.namespace,
        f"{gang.key.kind}/{gang.key.name}",
        style.paint(_readiness(gang), _STATE_COLOURS[State.WELL if stands else State.ILL]),
        str(len(gang.nodes)),
        _devices(gang, style=style),
        _budget(gang),
        _brief(last, style=style) if last is not None else "",
        spans.age(style.now - last.at) if last is not None else "",
    ]


def _readiness(gang: GangView) -> str:
    return f"{sum(member.stands for member in gang.members)}/{len(gang.members)}"


def _devices(gang: GangView, *, style: Style) -> str:
    """Return the members' verdicts, the worst first."""
    verdicts = Counter(member.devices.status for member in gang.members if member.devices is not None)
    words = {ConditionStatus.FALSE: "bad", ConditionStatus.UNKNOWN: "unknown", ConditionStatus.TRUE: "healthy"}
    worst = next((status for status in words if verdicts[status]), None)
    text = ", ".join(f"{verdicts[status]} {word}" for status, word in words.items() if verdicts[status])
    return style.paint(text, _VERDICT_COLOURS[worst]) if worst is not None else ""


_VERDICT_COLOURS: Final = {
    ConditionStatus.TRUE: "green",
    ConditionStatus.UNKNOWN: "magenta",
    ConditionStatus.FALSE: "red",
}


def _budget(gang: GangView) -> str:
    if gang.budget is None:
        return _NOTHING
    return f"{gang.budget.left} of {gang.budget.limit} in {budgets.span(gang.budget.window)}"


def _brief(last: RoundView, *, style: Style) -> str:
    took = f" in {spans.milliseconds(last.took)}" if last.took is not None else ""
    number = f"{last.attempt}: " if last.attempt else ""
    cause = f", {last.cause}" if last.cause else ""
    return f"{number}{style.paint(last.phase, _PHASE_COLOURS.get(last.phase, 'cyan'))}{took}{cause}"


def _members(members: Sequence[MemberView], *, style: Style) -> str:
    """Return the table of members.

    It has their spares where a launcher runs, and kubelet's own view of their devices where it publishes one.
    """
    headers, rows = list(_MEMBER_HEADERS), [_member_row(member, style=style) for member in members]
    if any(member.spare for member in members):
        headers.append(_SPARE)
        rows = [[*row, _spare(member.spare, style=style)] for row, member in zip(rows, members, strict=True)]
    if any(member.kubelet for member in members):
        headers.append(_KUBELET)
        rows = [[*row, _kubelets(member, style=style)] for row, member in zip(rows, members, strict=True)]
    return _table(headers, rows)


def _spare(spare: Condition | None, *, style: Style) -> str:
    """Return the condition: a restart without a spare that is ready is slower, but no fault."""
    if spare is None:
        return ""
    if spare.status is ConditionStatus.TRUE:
        return style.paint(spare.message, "green")
    return f"{style.paint(spare.reason, 'yellow')}: {spare.message}"


def _kubelets(member: MemberView, *, style: Style) -> str:
    """Return the worst health that kubelet publishes, and the device that has it."""
    for health, colour in _HEALTH_COLOURS.items():
        found = [each for each in member.kubelet if each.health is health]
        if found and health is ReportedHealth.HEALTHY:
            return style.paint("healthy", colour)
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            reason = f": {found[0].message}" if found[0].message else ""
            return f"{style.paint(health.value, colour)} {found[0].id}{more}{reason}"
    return ""


_HEALTH_COLOURS: Final = {
    ReportedHealth.UNHEALTHY: "red",
    ReportedHealth.UNKNOWN: "magenta",
    ReportedHealth.HEALTHY: "green",
}


def _member_row(member: MemberView, *, style: Style) -> list[str]:
    state = "Ready" if member.ready else "Completed" if member.stands else f"{member.phase.value}, not ready"
    return [
        member.pod,
        member.node,
        style.paint(state, _STATE_COLOURS[State.WELL if member.stands else State.ILL]),
        str(member.restarts),
        _verdict(member.devices, style=style),
        member.restart.message or member.restart.reason if member.restart is not None else "",
    ]


def _verdict(devices: Condition | None, *, style: Style) -> str:
    if devices is None:
        return ""
    colour = _VERDICT_COLOURS[devices.status]
    if devices.status is ConditionStatus.TRUE:
        return style.paint("healthy", colour)
    return f"{style.paint(devices.reason, colour)}: {devices.message}"


def _round_row(each: RoundView, *, style: Style) -> list[str]:
    return [
        str(each.attempt or ""),
        each.name,
        style.paint(each.phase, _PHASE_COLOURS.get(each.phase, "cyan")),
        each.cause,
        each.member,
        each.node,
        " ".join(filter(None, (each.decision, f"({each.reason})" if each.reason else ""))),
        spans.milliseconds(each.took) if each.took is not None else "",
        spans.age(style.now - each.at),
    ]


def _last_reason(last: RoundView, *, namespace: str) -> str:
    """Return the reason of the last round, and the command that shows more of it."""
    lines = [f"last: {last.message}"] if last.message else []
    if last.detail:
        lines.append(f"decision: {last.detail}")
    if last.phase not in objects.FINAL:
        lines.append("it is in progress")
    elif last.phase != _REFUSED:
        lines.append(f"its members: kubemend timeline {last.name} -n {namespace}")
    return "\n".join(lines)


def _notes(report: Report, gangs: Sequence[GangView]) -> list[str]:
    return [
        f"note: {note}" for note in (*report.notes, *(f"{gang.key}: {note}" for gang in gangs for note in gang.notes))
    ]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell or _NOTHING for cell in row] for row in rows]
    return tabulate.tabulate(cells, headers, tablefmt="plain", disable_numparse=True)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _gang_object(gang: GangView) -> dict[str, Any]:
    return {
        "namespace": gang.key.namespace,
        "kind": gang.key.kind,
        "name": gang.key.name,
        "state": gang.state.value,
        "nodes": list(gang.nodes),
        "members": [_member_object(member) for member in gang.members],
        "budget": dataclasses.asdict(gang.budget) if gang.budget is not None else None,
        "rounds": [_round_object(each) for each in gang.rounds],
        "notes": list(gang.notes),
    }


def _member_object(member: MemberView) -> dict[str, Any]:
    return {
        "slot": member.slot,
        "pod": member.pod,
        "node": member.node,
        "phase": member.phase.value,
        "ready": member.ready,
        "state": member.state.value,
        "optedIn": member.opted_in,
        "restarts": member.restarts,
        "devicesHealthy": _condition(member.devices),
        "inPlaceRestart": _condition(member.restart),
        "warmSpare": _condition(member.spare),
        "allocatedResources": [
            {"resource": each.resource, "id": each.id, "health": each.health.value, "message": each.message}
            for each in member.kubelet
        ],
    }


def _condition(condition: Condition | None) -> dict[str, str] | None:
    if condition is None:
        return None
    return {"status": condition.status.value, "reason": condition.reason, "message": condition.message}


def _round_object(each: RoundView) -> dict[str, Any]:
    return {
        "restart": each.name,
        "attempt": each.attempt,
        "phase": each.phase,
        "trigger": {"code": each.cause, "message": each.message, "member": each.member, "node": each.node},
        "decision": {"kind": each.decision, "reason": each.reason, "detail": each.detail},
        "totalMilliseconds": each.took,
        "at": timestamps.rfc3339(each.at),
    }
