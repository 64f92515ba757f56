"""List the documentation pages, and the commands in them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.unit.docs import commands
from tests.unit.docs.commands import Command

ROOT: Final = Path(__file__).parents[3]
ALL: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)


def name(page: Path) -> str:
    """Return a page's path in the repository."""
    return str(page.relative_to(ROOT))


def typed() -> Iterator[tuple[str, Command]]:
    """Yield each command with the page that it is on."""
    for page in ALL:
        for command in commands.commands(page.read_text("utf-8")):
            yield name(page), command


def of(*programs: str) -> Mapping[str, Command]:
    """Return the commands of these programs, each once, by a name for the test; the page is its first one."""
    found: dict[Command, str] = {}
    for page, command in typed():
        if command.program in programs:
            found.setdefault(command, f"{page}: {' '.join(command.words)[:100]}")
    return {place: command for command, place in found.items()}
