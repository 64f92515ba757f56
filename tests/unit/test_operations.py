"""docs/operations.md names what there is: every reason and metric of the code, and none that is not."""

import re
from pathlib import Path

import pytest

from agent.restart import admission
from controller.decisions import facts

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "operations.md").read_text()

_METRIC = re.compile(
    r'\b(?P<kind>Counter|Gauge|Histogram|GaugeMetricFamily)\(\s*"(?P<name>kubemend_\w+)",'
    r'(?:\s*"[^"]*")+(?:,\s*(?:labels=)?[\[(](?P<labels>[^\])]*)[\])])?'
)
_TOLD = re.compile(r"`(?P<name>kubemend_[a-z_]+)(?:\{(?P<inner>[a-z_,]+)\})?(?P<rest>[a-z_]*)`")


def table(after: str) -> set[str]:
    """Return the names in the first column of the table that follows these words."""
    rows = re.match(r"[^|]*((?:\|.*\n)+)", TEXT[TEXT.index(after) + len(after) :])
    assert rows is not None, after
    cells = [row.split("|")[1] for row in rows[1].splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def there() -> dict[str, tuple[str, ...]]:
    """Return the labels of every metric in the code, by its name as it is scraped."""
    found: dict[str, tuple[str, ...]] = {}
    for package in ("agent", "controller", "common"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for match in _METRIC.finditer(path.read_text()):
                total = "_total" if match["kind"] == "Counter" else ""
                found[match["name"] + total] = tuple(re.findall(r"\w+", match["labels"] or ""))
    return found


def told() -> dict[str, tuple[str, ...]]:
    """Return the labels of every metric that the text names; braces within a name stand for several."""
    found: dict[str, tuple[str, ...]] = {}
    for match in _TOLD.finditer(TEXT):
        inner = tuple((match["inner"] or "").split(",")) if match["inner"] else ()
        if match["rest"]:
            found |= {f"{match['name']}{each}{match['rest']}": () for each in inner}
        else:
            found[match["name"]] = found.get(match["name"]) or inner
    return found


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        ("## Reasons\n", {reason.value for reason in admission.Reason}),
        ("Decisions about gangs", {reason.value for reason in facts.Reason}),
    ],
)
def test_reasons(after: str, reasons: set[str]) -> None:
    assert table(after) == reasons


def test_metrics() -> None:
    assert len(there()) > 30
    assert told() == there()
