"""Draw a round's chart for a terminal: a bar of blocks for each member. Pure."""

from typing import Final

import click

from kubemend.cli import palette, spans
from kubemend.cli.bars import Bar, Chart

NARROWEST: Final = 20
"""Minimum columns of a bar, on any terminal."""

_LONGEST_NAME: Final = 40
_TIME: Final = 10
_GAP: Final = "  "


def draw(chart: Chart, *, width: int, colour: bool) -> str:
    """Return the chart as lines of at most ``width`` columns, unless names and causes are longer.

    ``colour`` is for terminals.
    """
    names = min(_LONGEST_NAME, max(len(bar.member) for bar in chart.bars))
    columns = max(NARROWEST, width - names - _TIME - 2 * len(_GAP))
    lines = [*headline(chart), "", *_ruler(chart, columns=columns, indent=names + 2 * len(_GAP))]
    lines += [_line(bar, chart, names=names, columns=columns, colour=colour) for bar in chart.bars]
    if chart.left_out:
        lines.append(f"{chart.left_out} faster members are not shown")
    return "\n".join((*lines, "", _legend(chart, colour=colour)))


def headline(chart: Chart) -> list[str]:
    """Return a summary of the round, in two to four lines."""
    total = f" in {spans.milliseconds(chart.total)}" if chart.total is not None else ""
    number = f", attempt {chart.attempt}" if chart.attempt else ""
    where = f" in {chart.hit}" if chart.hit else ""
    on = f" on {chart.node}" if chart.node else ""
    lines = [
        f"{chart.gang}{number}: {chart.phase}{total}",
        f"{chart.cause or 'cause unknown'}{where}{on}; {chart.decision or 'decision unknown'}; {chart.members} members",
    ]
    return [*lines, *filter(None, (chart.message, chart.held))]


def _ruler(chart: Chart, *, columns: int, indent: int) -> list[str]:
    """Return the marks above the bars, a line each, so that none hides another."""
    begin = {"fault": 0.0, "decided": chart.decided} if chart.decided is not None else {"decided": 0.0}
    marks = {**begin, "all old dead": chart.all_dead, "last one runs": chart.total}
    lines = []
    for name, at in marks.items():
        if at is None:
            continue
        column = _column(at, chart, columns)
        text = f"{name} {spans.milliseconds(at)}" if at else name
        fits = column > len(text)
        lines.append(" " * (indent + column - (len(text) + 1) * fits) + (f"{text} ▼" if fits else f"▼ {text}"))
    return lines


def _line(bar: Bar, chart: Chart, *, names: int, columns: int, colour: bool) -> str:
    name = bar.member if len(bar.member) <= names else f"…{bar.member[-names + 1 :]}"
    mark = "✖" if bar.hit else " "
    drawn = _blocks(bar, chart, columns=columns, colour=colour)
    if bar.failure:
        end = f"{'failed':>{_TIME}}{_GAP}{bar.failure}"
    else:
        end = f"{spans.milliseconds(bar.ran_at) if bar.ran_at is not None else '?':>{_TIME}}"
    return f"{mark} {name:<{names}}{_GAP}{drawn}{end}"


def _blocks(bar: Bar, chart: Chart, *, columns: int, colour: bool) -> str:
    """Return the bar; its segments begin and end at whole columns."""
    parts: list[str] = []
    drawn = 0
    for segment in bar.segments:
        begin, end = (round(at / chart.span * columns) for at in (segment.begin, segment.end))
        ink = palette.ink(segment.step)
        parts.append(" " * (begin - drawn))
        parts.append(click.style(ink.glyph * (end - begin), fg=ink.terminal) if colour else ink.glyph * (end - begin))
        drawn = end
    return "".join(parts) + " " * (columns - drawn)


def _column(at: float, chart: Chart, columns: int) -> int:
    return min(columns - 1, round(at / chart.span * columns))


def _legend(chart: Chart, *, colour: bool) -> str:
    entries = []
    for step in chart.steps:
        ink = palette.ink(step)
        glyph = click.style(ink.glyph, fg=ink.terminal) if colour else ink.glyph
        entries.append(f"{glyph} {palette.meaning(step)}")
    return _GAP.join((*entries, *(["✖ fault"] if any(bar.hit for bar in chart.bars) else ())))
