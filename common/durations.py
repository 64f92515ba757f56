"""Lengths of time as annotations and settings write them. Pure."""

import re

_DURATION = re.compile(r"(?P<amount>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def seconds(text: str) -> float:
    """Return how long ``10s``, ``500ms``, ``1.5m``, ``1h`` or ``10`` (seconds) is. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write seconds, such as 10s or 500ms")
    return float(match["amount"]) * _UNIT_SECONDS[match["unit"]]
