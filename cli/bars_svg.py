"""Draw a round's chart as a Gantt chart in SVG, byte for byte reproducible. Needs matplotlib.

Text stays text: it can be searched and copied, and is drawn in the reader's own font.
"""

import io
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kubemend.cli import bars_text, palette, spans
from kubemend.cli.bars import Bar, Chart

_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "kubemend",  # ids of elements are random otherwise
    "svg.fonttype": "none",
    "text.parse_math": False,  # messages may contain dollar signs
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}
_METADATA: Final = {"Date": None, "Creator": "kubemend timeline"}
_WIDTH: Final = 11.0  # inches
_AROUND: Final = 2.6
_PER_BAR: Final = 0.28
_THICK: Final = 0.72  # fraction of a bar's slot
_LONGEST_NAME: Final = 48
_FAILURES: Final = 3  # spelled out above the bars; all have their mark
_IN_A_ROW: Final = 5  # columns of the legend
_LONGEST_LINE: Final = 150


def draw(chart: Chart) -> str:
    """Return the SVG."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _AROUND + _PER_BAR * len(chart.bars)), layout="constrained")
        axes = figure.add_subplot()
        for place, bar in enumerate(chart.bars):
            _bar(axes, bar, place=place)
        _marks(axes, chart)
        _frame(axes, chart)
        _texts(figure, axes, chart)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata=_METADATA)
    return picture.getvalue()


def _bar(axes: Axes, bar: Bar, *, place: int) -> None:
    for segment in bar.segments:
        axes.broken_barh(
            [(segment.begin, segment.end - segment.begin)],
            (place - _THICK / 2, _THICK),
            facecolors=palette.ink(segment.step).colour,
            edgecolor="white",
            linewidth=0.3,
        )
    if bar.failure:
        text, colour, weight = f" ✖ {bar.failure.partition(':')[0]}", palette.FAULT, "bold"
    else:
        text = f" {spans.milliseconds(bar.ran_at)}" if bar.ran_at is not None else ""
        colour, weight = palette.DARK, "normal"
    axes.text(bar.end, place, text, va="center", ha="left", fontsize=8, color=colour, weight=weight)
    if bar.hit:
        axes.plot([0], [place], marker="X", markersize=9, color=palette.FAULT, markeredgecolor="white", clip_on=False)


def _marks(axes: Axes, chart: Chart) -> None:
    top = -0.75
    if chart.decided:
        axes.axvline(chart.decided, color=palette.DARK, linewidth=0.8, linestyle=":")
    if chart.all_dead is not None:
        axes.axvline(chart.all_dead, color=palette.DEAD, linewidth=1.4, linestyle="--")
        text = f"all old dead: {spans.milliseconds(chart.all_dead)} "
        left = chart.all_dead > chart.span / 3
        axes.text(
            chart.all_dead,
            top,
            text if left else f" {text}",
            ha="right" if left else "left",
            va="bottom",
            weight="bold",
        )


def _frame(axes: Axes, chart: Chart) -> None:
    axes.set_xlim(-0.015 * chart.span, 1.1 * chart.span)  # space for the fault's mark, and for times
    axes.set_ylim(len(chart.bars) - 0.4, -1.2)
    axes.set_yticks(range(len(chart.bars)), [_label(bar) for bar in chart.bars])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda at, _: spans.milliseconds(at))
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("time since the fault" if chart.decided is not None else "time since the decision")


def _texts(figure: Figure, axes: Axes, chart: Chart) -> None:
    first, *others = bars_text.headline(chart)
    figure.suptitle(_shortened(first, _LONGEST_LINE), x=0.01, ha="left", fontsize=13, weight="bold")
    failed = [f"✖ {bar.member}: {bar.failure}" for bar in chart.bars if bar.failure]
    others += failed[:_FAILURES]
    if chart.left_out:
        others.append(f"the {len(chart.bars)} slowest members; {chart.left_out} faster ones are not shown")
    axes.set_title("\n".join(_shortened(line, _LONGEST_LINE) for line in others), loc="left", fontsize=9)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=palette.ink(step).colour, label=palette.meaning(step)) for step in chart.steps
    ]
    if any(bar.hit for bar in chart.bars):
        handles.append(Line2D([], [], marker="X", linestyle="", color=palette.FAULT, label="fault"))
    if chart.decided:
        handles.append(Line2D([], [], color=palette.DARK, linewidth=0.8, linestyle=":", label="decided"))
    if chart.all_dead is not None:
        handles.append(Line2D([], [], color=palette.DEAD, linewidth=1.4, linestyle="--", label="all old dead"))
    figure.legend(handles=handles, loc="outside lower left", ncols=_IN_A_ROW, frameon=False, fontsize=8)


def _label(bar: Bar) -> str:
    where = f"  {bar.node}" if bar.node else ""
    return _shortened(f"{bar.member}{where}", _LONGEST_NAME)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
