"""Read the tables of docs/api.md."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from hack import api_doc

Row = Mapping[str, str]


def rows(title: str) -> Iterator[Row]:
    """Yield the rows of the table below a heading, as cells by the names of their columns."""
    section = re.split(r"^#+ .*\n", api_doc.page().partition(f" {title}\n")[2], flags=re.MULTILINE)[0]
    head, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    for line in lines:
        yield dict(zip(_cells(head), _cells(line), strict=True))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


WRITTEN_BY_PEOPLE: Final = [*rows("What you write")]
WRITTEN_BY_US: Final = [*rows("What kubemend writes")]
RESTART_CONDITIONS: Final = {row["type"].strip("`") for row in rows("Conditions of a Restart")}
