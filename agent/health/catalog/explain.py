"""Implement ``kubemend explain``: findings of a log as plain objects, and the meaning of a code as text. Pure.

Exit codes of the command:

- ``explain CODE``: 0 when the catalog has the code, 1 when it does not (the text then describes the reaction to unknown
  codes), 2 when CODE is not a valid code (``ValueError``; its message is one line for people).
- ``explain --log FILE``: 0 when the log was read to its end, with or without findings; 2 when it cannot be read.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kubemend.agent.health.catalog import fault_names, repeats
from kubemend.agent.health.catalog.catalog import Catalog, Entry, FaultKey
from kubemend.agent.health.catalog.subcodes import SubCode
from kubemend.agent.health.kmsg import kmsg_record, line_reader
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.model.findings import Finding, FindingKind

_WIDTH = 100
_FIRST_SXID = 10000
"""Xids are far below, SXids above: a bare number identifies its kind."""

_LOST = "none can continue; members of gangs are recreated elsewhere at once, even if they merely hang"

_SUBCODE = re.compile(r"(?P<fault>.*\d)\.(?P<number>\d{1,2})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of a code. ``rows`` are names with their texts, ``known`` is whether the catalog has it."""

    title: str
    rows: tuple[tuple[str, str], ...]
    known: bool

    @property
    def text(self) -> str:
        """The whole explanation as text."""
        return "\n".join([self.title, *(_row(name, text) for name, text in self.rows)])

    def as_json(self) -> dict[str, object]:
        """Return the whole explanation as JSON."""
        return {"title": self.title, "known": self.known, "rows": [{"name": n, "text": t} for n, t in self.rows]}


def findings_from_lines(lines: Iterable[str], *, catalog: Catalog) -> Iterator[dict[str, object]]:
    """Yield one JSON-ready object for each finding in lines of dmesg, journalctl, syslog, pstore or raw kmsg.

    Lines without a finding give nothing. Fields that a line does not contain are None.
    """
    reader = line_reader.LineReader(catalog)
    for line in lines:
        if not line_reader.text_may_matter(line):
            continue
        parsed = kmsg_record.parse_printed(line)
        seen = LineContext(observed_at=0.0, boot_seconds=parsed.boot_seconds)
        for finding in reader.read(parsed.text, seen=seen):
            yield _as_object(finding, catalog=catalog)


def _as_object(finding: Finding, *, catalog: Catalog) -> dict[str, object]:
    entry = catalog.find(FaultKey(finding.kind, finding.code))
    return {
        "source": finding.source.value,
        "kind": finding.kind.value,
        "code": int(finding.code) if finding.code.isdecimal() else finding.code or None,
        "device": str(finding.device.pci) if finding.device.pci is not None else None,
        "gpu_instance": finding.device.gpu_instance,
        "compute_instance": finding.device.compute_instance,
        "pid": finding.pid,
        "name": finding.process_name,
        "action": finding.action.value,
        "text": finding.text,
        "meaning": entry.name if entry is not None else None,
        "boot_seconds": finding.boot_seconds,
        "evidence": dict(finding.evidence),
    }


def explain_code(query: str, *, catalog: Catalog) -> Explanation:
    """Explain ``79``, ``xid 79``, ``SXid 20034``, ``149.4`` or ``FallenOffBus``: its meaning and kubemend's reaction.

    Raises ValueError with one line for people when the query does not name exactly one fault.
    """
    if (match := _SUBCODE.fullmatch(query)) is not None:
        return _subcode(_one(match["fault"]), int(match["number"]), catalog=catalog)
    key = _one(query)
    entry = catalog.find(key)
    if entry is None:
        return _unknown(key, catalog=catalog)
    return _known(entry, catalog=catalog)


def _one(query: str) -> FaultKey:
    named = fault_names.keys(query, default=_default_kind(query))
    if len(named) != 1:
        raise ValueError(f"{query!r} names {len(named)} faults: ask for one at a time")
    return named[0]


def _default_kind(query: str) -> FindingKind:
    number = query.strip()
    is_sxid = number.isascii() and number.isdigit() and int(number[:10]) >= _FIRST_SXID
    return FindingKind.SXID if is_sxid else FindingKind.XID


def _known(entry: Entry, *, catalog: Catalog) -> Explanation:
    rows = [
        ("Means", entry.meaning),
        ("Done", catalog.reaction(entry)),
        ("Action class", entry.action.value),
        (
            "Severity in the line",
            "Non-fatal lowers it to None, Fatal raises it to AskDriver" if entry.word_decides else "",
        ),
        ("Caused by the app", entry.app_caused.value),
        ("NVIDIA's advice", entry.nvidia),
        ("Note", entry.note),
        ("Sub-codes", _numbers(entry)),
        ("Repeated", str(entry.repeats) if entry.repeats is not None else ""),
        ("Over", f"when not seen for {repeats.span(entry.over_after)}" if entry.over_after is not None else ""),
        ("Programs on device", _LOST if entry.ends_programs else ""),
        ("Effect of", _names(entry.effect_of)),
        ("Causes", _names(catalog.effects(entry.key))),
        ("Ends", _names(entry.cancels)),
        ("Catalog", catalog.version),
    ]
    return Explanation(f"{entry.key}: {entry.name}", tuple((name, text) for name, text in rows if text), known=True)


def _numbers(entry: Entry) -> str:
    numbers = sorted({number for rule in entry.subcodes for number in rule.numbers})
    named = ", ".join(f"{entry.key.code}.{number}" for number in numbers)
    return f"{named}; explain one of them to see its rules" if named else ""


def _subcode(key: FaultKey, number: int, *, catalog: Catalog) -> Explanation:
    entry = catalog.find(key)
    rules = [rule for rule in entry.subcodes if number in rule.numbers] if entry is not None else []
    title = f"{key}.{number}: {entry.name if entry is not None and rules else 'unknown'}"
    rows = [(_units(rule), _rule(rule, catalog=catalog)) for rule in rules]
    rows += [("Otherwise", f"as {key}: {catalog.action(key).value}"), ("Catalog", catalog.version)]
    return Explanation(title, tuple(rows), known=bool(rules))


def _units(rule: SubCode) -> str:
    return max(rule.units, key=lambda unit: (-len(unit), unit))


def _rule(rule: SubCode, *, catalog: Catalog) -> str:
    statuses = ", ".join(f"{status:#x}" for status in sorted(rule.statuses))
    advice = f" NVIDIA's advice: {rule.nvidia}." if rule.nvidia else ""
    return f"status {statuses}: {rule.name}. Action class {rule.action.value}.{advice} {catalog.does[rule.action]}"


def _unknown(key: FaultKey, *, catalog: Catalog) -> Explanation:
    action = catalog.action(key)
    rows = (
        ("Means", "Unknown: this code is not in the catalog. It can be added by an override file."),
        ("Done", catalog.does[action]),
        ("Action class", action.value),
        ("Catalog", catalog.version),
    )
    return Explanation(f"{key}: unknown", rows, known=False)


def _row(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<18} ", subsequent_indent=" " * 21)


def _names(keys: Iterable[FaultKey]) -> str:
    return ", ".join(map(str, sorted(keys, key=lambda key: (key.kind.value, int(key.code or 0)))))
