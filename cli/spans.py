"""Format time spans for people. Pure."""

from typing import Final

_MINUTE: Final = 60.0
_AGES: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))


def milliseconds(length: float) -> str:
    """Return ``640 ms``, ``12.4 s`` or ``3.2 min``."""
    if length < 10_000:
        return f"{length:.0f} ms"
    seconds = length / 1000
    return f"{seconds:.1f} s" if seconds < 10 * _MINUTE else f"{seconds / _MINUTE:.1f} min"


def age(seconds: float) -> str:
    """Format an age as kubectl does: ``12s``, ``5m``, ``3h``, ``4d``; never negative."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
