"""Parse and format durations of annotations and settings. Pure."""

import re

_DURATION = re.compile(r"(?P<amount>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def seconds(text: str) -> float:
    """Return the seconds of ``10s``, ``500ms``, ``1.5m``, ``1h`` or ``10`` (seconds). Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write seconds, such as 10s or 500ms")
    return float(match["amount"]) * _UNIT_SECONDS[match["unit"]]


def text(amount: float) -> str:
    """Format seconds as a duration that ``seconds`` parses: ``300.0`` is ``5m``, ``0.5`` is ``500ms``."""
    for unit in ("h", "m"):
        whole, rest = divmod(amount, _UNIT_SECONDS[unit])
        if whole and not rest:
            return f"{whole:.0f}{unit}"
    return f"{amount:g}s" if amount >= 1 or not amount else f"{amount * 1000:g}ms"
