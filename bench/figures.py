"""Turn samples into the figures that the benchmarks print."""

import statistics
from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least ``percent`` of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the greatest of durations given in seconds, in milliseconds."""
    return {
        "p50": round(statistics.median(seconds) * 1000, 2),
        "p99": round(percentile(seconds, 99) * 1000, 2),
        "max": round(max(seconds) * 1000, 2),
    }


def shown(milliseconds: Sequence[float]) -> str:
    """Format durations for people, in their order: ``85 ms, 1.2 s, 26 s``."""
    return ", ".join(map(_shown, milliseconds))


def _shown(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 10_000 else f"{milliseconds / 1000:.0f} s"
