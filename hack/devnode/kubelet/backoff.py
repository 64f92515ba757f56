"""CrashLoopBackOff: how long a container that keeps dying waits (kubelet's ``flowcontrol.Backoff``).

It is kept by kubelet, in memory, and asked only about an exited container that the runtime still shows: where there
is none (all removed), there is no backoff.
"""

from dataclasses import dataclass, field

FORGOTTEN_AFTER = 600.0
"""Seconds without a restart after which a container starts over (``kubelet.go``, HasExpiredFunc)."""


@dataclass(slots=True)
class _Entry:
    wait: float
    updated: float


@dataclass(slots=True)
class CrashLoopBackOff:
    """Waiting times per key, in seconds: ``first``, then doubled up to ``limit``."""

    first: float = 10.0
    limit: float = 300.0
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def remaining(self, key: str, *, finished_at: float, now: float) -> float:
        """Return the seconds that are left to wait after an exit at ``finished_at``; 0 means start now."""
        entry = self._live(key, finished_at)
        return max(0.0, entry.wait - (now - finished_at)) if entry is not None else 0.0

    def current(self, key: str) -> float:
        """Return the waiting time that holds for the key (0 when there is none)."""
        entry = self._entries.get(key)
        return entry.wait if entry is not None else 0.0

    def started(self, key: str, *, finished_at: float, now: float) -> None:
        """A restart is about to happen: the next one waits twice as long, or ``first`` after a long quiet time."""
        entry = self._live(key, finished_at)
        wait = self.first if entry is None else min(entry.wait * 2, self.limit)
        self._entries[key] = _Entry(wait=wait, updated=now)

    def forget(self, prefix: str) -> None:
        """Drop every key that starts so (a pod that is gone)."""
        for key in [key for key in self._entries if key.startswith(prefix)]:
            del self._entries[key]

    def _live(self, key: str, finished_at: float) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None or finished_at - entry.updated > FORGOTTEN_AFTER:
            return None
        return entry
