"""Generate docs/catalog.md from the catalog. ``--check`` writes nothing and fails when the page is not current."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby

from hack import generated
from kubemend.agent.health.catalog import catalog_file, repeats, sensor_limits
from kubemend.agent.health.catalog.catalog import Catalog, Entry, FaultKey
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind

PAGE = generated.ROOT / "docs" / "catalog.md"


def render(catalog: Catalog) -> str:
    """Return the page as Markdown."""
    return generated.text(
        "catalog.md",
        catalog=catalog,
        actions=ActionClass,
        kinds=FindingKind,
        entries=sorted(catalog.entries.values(), key=lambda entry: _order(entry.key)[1]),
        limits=_limits(catalog),
        runs=_runs,
        codes=_codes,
        span=repeats.span,
    )


def _limits(catalog: Catalog) -> Iterator[tuple[str, float]]:
    for group in sensor_limits.GROUPS:
        limits = getattr(catalog.limits, group)
        yield from ((f"{group}.{each.name}", getattr(limits, each.name)) for each in fields(limits))


def _runs(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return neighbours with the same content as one."""
    return [list(run) for _, run in groupby(entries, key=lambda entry: (entry.name, entry.action))]


def _codes(keys: Iterable[FaultKey]) -> str:
    """Return the codes in their order, and neighbours as one: ``13, 39-41``."""
    return ", ".join(_ranges(sorted(keys, key=_order)))


def _ranges(keys: Iterable[FaultKey]) -> Iterator[str]:
    for (kind, _), run in groupby(enumerate(keys), key=lambda item: (item[1].kind, _order(item[1])[1] - item[0])):
        codes = [key.code for _, key in run]
        yield "-".join(dict.fromkeys((codes[0], codes[-1]))) or kind.value


def _order(key: FaultKey) -> tuple[str, int]:
    return key.kind.value, int(key.code or 0)


if __name__ == "__main__":
    sys.exit(generated.main("catalog_doc", lambda: {PAGE: render(catalog_file.builtin())}))
