"""Generate docs/performance.md, docs/recovery.svg and the tables of README.md from docs/performance.json.

``python -m bench.all --write docs/performance.json`` measures. ``--check`` fails when one of them is stale. No figure
of other projects is typed by hand: all come from the same run on the same machine (``bench.peers``), and missing
measurements of them are not shown. The goals are those of ``bench.goals``, also if the file is older than they are.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from bench import figures, goals
from hack import generated, recovery_picture

SOURCE: Final = generated.ROOT / "docs" / "performance.json"
PAGE: Final = generated.ROOT / "docs" / "performance.md"
PICTURE: Final = generated.ROOT / "docs" / "recovery.svg"
README: Final = generated.ROOT / "README.md"

Json = Mapping[str, Any]


def render(report: Json) -> str:
    """Return the page as Markdown."""
    return _text("performance.md", report)


def block(report: Json) -> str:
    """Return the part of the README between its two marks, with them."""
    return _text("performance_readme.md", report)


def _text(template: str, report: Json) -> str:
    """Fill a text. Programs that were not run have no object as their output."""
    ran = {name: reported for name, reported in report["programs"].items() if isinstance(reported, dict)}
    numbers = [each.figures() for each in goals.results(report["programs"])]
    shown = {**report, "numbers": numbers}
    return generated.text(template, **shown, ran=ran, picture=recovery_picture.series(report), shown=figures.shown)


def files(report: Json) -> generated.Files:
    """Return the pages and the picture that show a report."""
    labels = [text for each in recovery_picture.series(report).values() for text in recovery_picture.labels(each)]
    picture = generated.picture(PICTURE, labels, lambda: recovery_picture.draw(report))
    readme = generated.with_block(README.read_text("utf-8"), block(report))
    return {PAGE: render(report), README: readme, PICTURE: picture}


if __name__ == "__main__":
    sys.exit(generated.main("performance_doc", lambda: files(json.loads(SOURCE.read_text("utf-8")))))
