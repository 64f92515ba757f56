"""Generate docs/catalog.md from the catalog. ``--check`` writes nothing and fails when the page is not current."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from hack import generated
from kubemend.agent.health.catalog import catalog_file, repeats, sensor_limits
from kubemend.agent.health.catalog.catalog import Catalog, Entry, FaultKey
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind

PAGE = generated.ROOT / "docs" / "catalog.md"

_TEXT = Path(__file__).with_suffix(".md")
"""The page, without the tables' rows."""


def render(catalog: Catalog) -> str:
    """Return the page as Markdown."""
    faults = []
    for kind in FindingKind:
        entries = sorted((each for each in catalog.entries.values() if each.key.kind is kind), key=_number)
        if entries:
            faults += [f"## {kind.value}\n", "| code | name | class | app | meaning | NVIDIA's advice | effect of |"]
            faults += ["|---|---|---|---|---|---|---|", *_rows(entries), ""]
    return _TEXT.read_text("utf-8").format(
        version=catalog.version,
        actions="\n".join(f"| `{action.value}` | {catalog.does[action]} |" for action in ActionClass),
        faults="\n".join(faults),
        limits="\n".join(_limits(catalog)),
        subcodes="\n".join(row for each in sorted(catalog.entries.values(), key=_number) for row in _subcodes(each)),
    )


def _limits(catalog: Catalog) -> Iterator[str]:
    for group in sensor_limits.GROUPS:
        limits = getattr(catalog.limits, group)
        yield from (f"| `{group}.{each.name}` | {getattr(limits, each.name):g} |" for each in fields(limits))


def _subcodes(entry: Entry) -> Iterator[str]:
    """Yield one row for each rule of a fault."""
    for rule in entry.subcodes:
        numbers = ", ".join(map(str, sorted(rule.numbers)))
        statuses = ", ".join(f"{status:#x}" for status in sorted(rule.statuses))
        cells = (
            str(entry.key),
            ", ".join(sorted(rule.units)),
            numbers,
            statuses,
            rule.name,
            f"`{rule.action.value}`",
            rule.nvidia,
        )
        yield _row(cells)


def _meaning(entry: Entry) -> str:
    often = f"{entry.repeats}." if entry.repeats is not None else ""
    over = f"Over when not seen for {repeats.span(entry.over_after)}." if entry.over_after is not None else ""
    lost = "No program can continue after it: members of gangs are recreated at once." if entry.ends_programs else ""
    return " ".join(filter(None, (entry.meaning, entry.note, entry.does, often, over, lost)))


def _rows(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield one row for each run of codes with the same content."""
    for _, same in groupby(entries, key=lambda entry: (entry.name, entry.action)):
        run = list(same)
        entry = run[0]
        codes = ", ".join(_ranges([each.key for each in run])) + (" †" if entry.word_decides else "")
        causes = ", ".join(_ranges(sorted(entry.effect_of, key=lambda key: (key.kind.value, _code(key)))))
        cells = (
            codes,
            entry.name,
            f"`{entry.action.value}`",
            entry.app_caused.value,
            _meaning(entry),
            entry.nvidia,
            causes,
        )
        yield _row(cells)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _ranges(keys: Iterable[FaultKey]) -> Iterator[str]:
    """Yield ``13``, ``39-41``: neighbours as one."""
    for (kind, _), run in groupby(enumerate(keys), key=lambda item: (item[1].kind, _code(item[1]) - item[0])):
        codes = [key.code for _, key in run]
        yield "-".join(dict.fromkeys((codes[0], codes[-1]))) or kind.value


def _number(entry: Entry) -> int:
    return _code(entry.key)


def _code(key: FaultKey) -> int:
    return int(key.code or 0)


if __name__ == "__main__":
    sys.exit(generated.main("catalog_doc", lambda: {PAGE: render(catalog_file.builtin())}))
