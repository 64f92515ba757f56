"""Generate docs/steps.md, docs/steps.svg and the first table of README.md from docs/steps.json.

``python -m bench.steps --write docs/steps.json`` measures. ``--check`` fails when one of them is stale.
"""

import io
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bench.steps import recovery
from hack import generated, recovery_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE: Final = generated.ROOT / "docs" / "steps.json"
PAGE: Final = generated.ROOT / "docs" / "steps.md"
PICTURE: Final = generated.ROOT / "docs" / "steps.svg"
README: Final = generated.ROOT / "README.md"

Json = Mapping[str, Any]

_COLOURS: Final = {  # Okabe and Ito, readable with every colour vision
    "restart": "#D55E00",
    "imports": "#E69F00",
    "rendezvous": "#999999",
    "device": "#F0E442",
    "build": "#56B4E9",
    "compile": "#0072B2",
    "load": "#CC79A7",
    "step": "#009E73",
}
_ROOM: Final = 1.12
_WIDEST: Final = 4.0
"""Times the loop in the container: a longer bar is cut there. The backoff of others would hide all the rest."""

_TITLE: Final = 1.3
"""The height of a part's title and axis in the picture, in bars."""


def render(report: Json) -> str:
    """Return the page as Markdown."""
    return _text("steps.md", report)


def block(report: Json) -> str:
    """Return the part of the README between its two marks, with them."""
    return _text("steps_readme.md", report)


def _text(template: str, report: Json) -> str:
    values = {name.replace("-", "_"): value for name, value in report.items()}
    return generated.text(template, **values, measured=_measured, used_stages=_used_stages)


def _measured(ways: Json) -> Json:
    """Return the ways after which the program continued."""
    return {name: way for name, way in ways.items() if "none" not in way}


def _used_stages(ways: Json) -> list[str]:
    """Return the stages that take time in any of the ways."""
    measured = _measured(ways).values()
    return [stage for stage in recovery.STAGES if any(way["stages_s"].get(stage) for way in measured)]


def _panels(report: Json) -> dict[str, Json]:
    """Return the measured ways of each part of the picture, by the part's title."""
    found = {"The program ends: exit": report["ways"]}
    if hang := report.get("hang"):
        found["It stops without an end: hang"] = hang["ways"]
    if lost := report.get("lost-node"):
        found[f"A gang of {lost['gang']['members']} loses a node: lost-node"] = lost["gang"]["ways"]
    if noticed := report.get("noticed-node"):
        found["From the mark of a node that was noticed: noticed-node"] = noticed["gang"]["ways"]
    return {title: _measured(ways) for title, ways in found.items()}


def labels(report: Json) -> list[str]:
    """Return the titles of the picture's parts and the labels of their bars."""
    panels = _panels(report)
    return [*panels, *(f"{way['first_step_s']:g} s" for ways in panels.values() for way in ways.values())]


def draw(report: Json) -> str:
    """Return the picture as SVG: for each fault and way the stages up to the first step, one after another."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = _panels(report)
    heights = [len(ways) + _TITLE for ways in panels.values()]
    with mpl.rc_context(recovery_picture.STYLE):
        made = Figure(figsize=(8.0, 0.75 + 0.4 * sum(heights)), layout="constrained")
        parts = made.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, ways) in zip(parts, panels.items(), strict=True):
            _draw_bars(axes, ways)
            axes.set_title(title, loc="left")
        made.suptitle("From a fault to the first training step", weight="bold")
        used = [stage for stage in recovery.STAGES if any(stage in _used_stages(ways) for ways in panels.values())]
        keys = [mpl.patches.Patch(color=_COLOURS[stage], label=stage) for stage in used]
        narrow = {"columnspacing": 1.0, "handlelength": 1.0, "handletextpad": 0.5}
        made.legend(handles=keys, frameon=False, loc="outside lower center", ncols=len(used), **narrow)
        picture = io.StringIO()
        made.savefig(picture, format="svg", metadata=recovery_picture.METADATA)
    return picture.getvalue()


def _draw_bars(axes: "Axes", ways: Json) -> None:
    """Draw a bar for each way. The loop in the container, where it is one of them, limits their length."""
    longest = max(way["first_step_s"] for way in ways.values())
    widest = min(_WIDEST * ways["process"]["first_step_s"] if "process" in ways else longest, longest)
    for place, way in enumerate(ways.values()):
        left = 0.0
        for stage in _used_stages(ways):
            length = min(way["stages_s"].get(stage, 0), widest - left)
            axes.barh(place, length, left=left, height=0.6, color=_COLOURS[stage])
            left += length
        cut = " …" if way["first_step_s"] > widest else ""
        axes.text(left, place, f"{cut} {way['first_step_s']:g} s", va="center")
    axes.set_xlim(left=0, right=widest * _ROOM)
    axes.set_yticks(range(len(ways)), list(ways))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g} s")


def files(report: Json) -> generated.Files:
    """Return the pages and the picture that show a report."""
    picture = generated.picture(PICTURE, labels(report), lambda: draw(report))
    readme = generated.with_block(README.read_text("utf-8"), block(report))
    return {PAGE: render(report), README: readme, PICTURE: picture}


if __name__ == "__main__":
    sys.exit(generated.main("steps_doc", lambda: files(json.loads(SOURCE.read_text("utf-8")))))
