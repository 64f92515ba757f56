"""Convert times of API objects (metav1.Time): UTC, whole seconds. Pure."""

import datetime as dt


def rfc3339(moment: float) -> str:
    """Format a Unix time, such as ``2026-01-31T08:00:00Z``."""
    return dt.datetime.fromtimestamp(int(moment), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> int:
    """Parse a time into whole Unix seconds. Raises ValueError when it is invalid."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"a time without a time zone: {text!r}")
    return int(moment.timestamp())
