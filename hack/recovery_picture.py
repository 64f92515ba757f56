"""The picture of the README: how long a gang of 20 stands still, failure after failure, with kubemend and upstream."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

UPSTREAM_SECONDS: Final = (3.1, 26.0, 53.0, 115.0, 172.0)
"""JobSet's InPlaceRestart with 20 pods, one failure after another, on Kubernetes 1.36.2 and one node."""

_METADATA: Final = {"Date": None, "Creator": "kubemend"}
_STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "kubemend",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_THEIRS, _OURS = "#BBBBBB", "#009E73"
_THICK: Final = 0.38
_ROOM: Final = 3.0
"""Times the slowest bar, for its label."""
_ORDINALS: Final = ("first failure", "second", "third", "fourth", "fifth")


def ours(report: Mapping[str, Any]) -> list[float]:
    """Return the first rounds of the gang benchmark, in seconds. Raises KeyError, TypeError when it was not run."""
    return [each / 1000 for each in report["programs"]["gang"]["round_ms"][: len(UPSTREAM_SECONDS)]]


def labels(seconds: Sequence[float]) -> list[str]:
    """Return what is written beside the bars."""
    return [f"{each:.2g} s" if each < 10 else f"{each:.0f} s" for each in seconds]


def draw(report: Mapping[str, Any]) -> str:
    """Return the picture as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 3.6), layout="constrained")
        axes = figure.add_subplot()
        series = (
            (-_THICK / 2, UPSTREAM_SECONDS, _THEIRS, "upstream JobSet, InPlaceRestart"),
            (_THICK / 2, ours(report), _OURS, "kubemend"),
        )
        for shift, seconds, colour, name in series:
            places = [place + shift for place in range(len(seconds))]
            axes.barh(places, seconds, height=_THICK, color=colour, label=name)
            for place, each, text in zip(places, seconds, labels(seconds), strict=True):
                axes.text(each, place, f" {text}", va="center")
        axes.set_xscale("log")
        axes.set_xlim(right=max(UPSTREAM_SECONDS) * _ROOM)
        axes.set_yticks(range(len(_ORDINALS)), _ORDINALS)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda at, _: f"{at:g} s")
        axes.set_title("One of 20 workers fails: until all run again", loc="left", weight="bold")
        axes.legend(frameon=False, loc="lower right")
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata=_METADATA)
    return picture.getvalue()
