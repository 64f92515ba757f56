"""Write generated files of the repository, or check that they are current."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import jinja2

ROOT: Final = Path(__file__).parent.parent

_TEXTS: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader([ROOT / "hack" / "pages", ROOT / "hack" / "chart" / "texts"]),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    lstrip_blocks=True,
    trim_blocks=True,
)
_TEXTS.filters |= {"g": "{:g}".format, "hex": hex}

Files = Mapping[Path, str | None]
"""Texts by path; None for a file that must not exist."""


def text(template: str, **values: Any) -> str:
    """Fill a text of a page or of the Helm chart. Raises jinja2.UndefinedError for a value that is missing."""
    return _TEXTS.get_template(template).render(values)


def main(generator: str, files: Callable[[], Files]) -> int:
    """Run a generator's command line, which has ``--check``. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m hack.{generator}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not current")
    return write(generator, files(), check=parser.parse_args().check)


def write(generator: str, files: Files, *, check: bool) -> int:
    """Write the files that are not current, or only report them. Returns the exit code."""
    wrong = stale(files)
    if check and wrong:
        names = ", ".join(str(path.relative_to(ROOT)) for path in wrong)
        print(f"not current: {names}; run python -m hack.{generator}", file=sys.stderr)
        return 1
    for path in wrong:
        content = files[path]
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
    return 0


def stale(files: Files) -> list[Path]:
    """Return the files that are not current."""
    return [path for path, content in files.items() if content != read(path)]


def read(path: Path) -> str | None:
    """Return a file's text; None if it does not exist."""
    return path.read_text("utf-8") if path.is_file() else None


def picture(path: Path, labels: Collection[str], draw: Callable[[], str]) -> str | None:
    """Return the picture with these labels; None if there are none. Its bytes depend on matplotlib: one that has the
    same labels stays.
    """
    found = read(path) or ""
    if labels and not all(label in found for label in labels):
        return draw()
    return found if labels else None


def with_block(page: str, block: str) -> str:
    """Return a page with ``block``, whose first and last line are the marks of its place.

    Raises ValueError when the page lacks them.
    """
    begin, *_, end = block.splitlines(keepends=True)
    before, found, rest = page.partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise ValueError(f"the page has no place for figures: {begin}{end}")
    return before + block + after
