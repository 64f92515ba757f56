"""Limit the writes for each of many objects by a token bucket each, kept in one number. Pure; time is an argument."""

from collections.abc import Hashable


class Allowances:
    """Each key may spend ``burst`` at once and one more every ``refill`` seconds.

    The state is the time at which a key's bucket is full again; a full bucket needs no memory.
    """

    def __init__(self, *, burst: int, refill: float) -> None:
        self._refill = refill
        self._slack = (burst - 1) * refill
        self._full_at: dict[Hashable, float] = {}

    def next_at(self, key: Hashable) -> float:
        """Return the time from which on the key may spend."""
        return self._full_at.get(key, float("-inf")) - self._slack

    def spend(self, key: Hashable, *, now: float) -> None:
        """Spend one of the key's tokens; only from ``next_at`` on."""
        self._full_at = {known: at for known, at in self._full_at.items() if at > now}
        self._full_at[key] = max(self._full_at.get(key, now), now) + self._refill
