"""docs/operations.md lists every reason of the code, and no others."""

import re
from pathlib import Path

import pytest

from kubemend.agent.restart import spares
from kubemend.agent.restart.reasons import Reason
from kubemend.controller.decisions import facts

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "operations.md").read_text()


def table(after: str) -> set[str]:
    """Return the names in the first column of the table that follows this text."""
    rows = re.match(r"[^|]*((?:\|.*\n)+)", TEXT[TEXT.index(after) + len(after) :])
    assert rows is not None, after
    cells = [row.split("|")[1] for row in rows[1].splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        ("## Reasons\n", {reason.value for reason in Reason}),
        ("Decisions about gangs", {reason.value for reason in facts.Reason}),
        ("Reasons of `WarmSpare`", set(spares.REASONS)),
    ],
)
def test_reasons(after: str, reasons: set[str]) -> None:
    assert table(after) == reasons
