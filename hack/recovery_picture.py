"""Draw the README's picture: how long a gang does not train, failure after failure, with kubemend and upstream.

All of it comes from ``bench.peers``, which measures both in one run on one cluster.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

METADATA: Final = {"Date": None, "Creator": "kubemend"}
STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "kubemend",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLOURS: Final = {"kubemend": "#009E73", "upstream_jobset": "#BBBBBB"}
_NAMES: Final = {"kubemend": "kubemend", "upstream_jobset": "upstream JobSet, InPlaceRestart"}
_ORDER: Final = ("upstream_jobset", "kubemend")
_THICK: Final = 0.38
_ROOM: Final = 1.1
"""Times the slowest bar: the width of the picture, with room for the bar's label."""
_ORDINALS: Final = ("first failure", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def series(report: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of each side, failure after failure; empty if ``bench.peers`` was not run."""
    reported = report["programs"].get("peers")
    gang = reported.get("gang") if isinstance(reported, dict) else None
    if gang is None:
        return {}
    most = len(_ORDINALS)
    return {side: [each / 1000 for each in gang[side]["failure_to_all_running_ms"][:most]] for side in _ORDER}


def labels(seconds: Sequence[float]) -> list[str]:
    """Return the labels of the bars."""
    return [f"{each:.2g} s" if each < 10 else f"{each:.0f} s" for each in seconds]


def figure(report: Mapping[str, Any]) -> Any:
    """Return the picture as a figure of matplotlib. Raises ValueError when there is nothing to show."""
    from matplotlib.figure import Figure

    shown = series(report)
    if not shown:
        raise ValueError("bench.peers was not run: there is nothing to draw")
    members = report["programs"]["peers"]["gang"]["members"]
    made = Figure(figsize=(8.0, 3.6), layout="constrained")
    axes = made.add_subplot()
    for number, (side, seconds) in enumerate(shown.items()):
        places = [place + (number - 0.5) * _THICK for place in range(len(seconds))]
        axes.barh(places, seconds, height=_THICK, color=_COLOURS[side], label=_NAMES[side])
        for place, each, text in zip(places, seconds, labels(seconds), strict=True):
            axes.text(each, place, f" {text}", va="center")
    failures = len(shown["kubemend"])
    axes.set_xlim(left=0, right=max(map(max, shown.values())) * _ROOM)
    axes.set_yticks(range(failures), _ORDINALS[:failures])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g} s")
    axes.set_title(f"One of {members} workers fails: until all run again", loc="left", weight="bold")
    made.legend(frameon=False, loc="outside lower center", ncols=len(shown))  # next to the bars it would cover one
    return made


def draw(report: Mapping[str, Any]) -> str:
    """Return the picture as SVG. Raises ValueError when there is nothing to show."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        picture = io.StringIO()
        figure(report).savefig(picture, format="svg", metadata=METADATA)
    return picture.getvalue()
