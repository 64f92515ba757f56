"""docs/metrics.md and the checks of the rules cover every metric, and all metrics are described."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hack import monitoring_metrics
from hack.monitoring import ROOT

_MAKE = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def made(package: str) -> Iterator[str]:
    """Yield the names of all metrics that the sources make."""
    for path in (ROOT / package).rglob("*.py"):
        yield from _made(path)


def _made(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), *_]) if (
                kind in _MAKE or kind.endswith("MetricFamily")
            ):
                yield name


def ours() -> list[monitoring_metrics.Exported]:
    """Return the metrics that are not the client library's own."""
    return [each for each in monitoring_metrics.exported() if not each.of_process]


def test_every_metric_of_the_sources_is_known() -> None:
    names = {name for package in ("agent", "controller", "common") for name in made(package)}
    assert len(names) > 30
    assert names == {each.name for each in ours()}


def test_no_name_means_two_kinds_or_labels() -> None:
    kinds = {each.name: (each.kind, each.labels) for each in ours()}
    assert all(kinds[each.name] == (each.kind, each.labels) for each in ours())


def test_every_help_is_a_sentence() -> None:
    for each in ours():
        assert re.fullmatch(r"[A-Z0-9].*[^.]\.", each.help), (each.name, each.help)


def test_names_have_their_units() -> None:
    for each in ours():
        assert re.fullmatch(r"(kubemend|jobset)(_[a-z]+)+", each.name)
        assert each.name.endswith("_seconds") or each.kind != "histogram", each.name


def test_the_page_has_every_metric_once_for_each_owner() -> None:
    page = monitoring_metrics.render(monitoring_metrics.exported())
    for each in ours():
        rows = [line for line in page.splitlines() if line.startswith(f"| `{each.shown}` |")]
        assert len(rows) == sum(other.name == each.name for other in ours())
