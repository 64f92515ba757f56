"""Decide when a restarted container first touched its heartbeat file. Pure: the checks of the file in, a time out.

Users wait for this after a restart: the program works again. The pod is not trusted, so the file's own time counts only
where it agrees with the agent's checks before and after the touch. Where the time cannot be determined, none is
returned.
"""

from dataclasses import dataclass

from kubemend.agent.health.state.heartbeat import Blank, Mark, Poll

LONGEST_WAIT = 3600.0
"""Seconds after a restart for which the first touch is awaited."""

_TICK = 0.05
"""Seconds by which a file's time may differ from the node's clock: the kernel takes it from its last timer tick."""

_SLEPT = 1.0  # seconds; less is a difference between two readings of the clocks
_SET = 1.0  # seconds; a difference that is larger means that the node's clock was set, smaller that it is adjusted


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One check of a container's file, and the facts that relate the file's time to the agent's clock.

    ``unix`` is the Unix time at the end of the check. ``started_at`` is the container's start as the runtime reports
    it (Unix time), None while that is unknown.
    """

    poll: Poll
    unix: float
    started_at: float | None

    def monotonic(self, unix: float) -> float:
        """Return a Unix time on the clock of ``poll``, by the difference of the two clocks at this check."""
        return self.poll.ended - (self.unix - unix)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The end of a restart, or the release by its round: only touches after it count.

    ``at`` is CLOCK_MONOTONIC and ``unix`` Unix time of the same moment, ``slept`` the node's total suspend time since
    boot (all in seconds). ``by_kubelet``: kubelet starts the container later, and only touches after that start count.
    """

    at: float
    unix: float
    slept: float
    by_kubelet: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The first touch. It is at ``latest`` or before, and after ``earliest`` (CLOCK_MONOTONIC).

    ``start`` is the moment from which touches count: ``start <= earliest <= latest``.
    """

    start: float
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """The time of the first touch cannot be determined any more, and why."""

    reason: str


def first_touch(restarted: Restarted, before: FileCheck | None, check: FileCheck) -> Step | Unknown | None:
    """Return the first touch if this check shows it; None while there was none.

    ``before`` is the container's last check that found the file, or found that there is none.
    """
    poll = check.poll
    if poll.slept - restarted.slept > _SLEPT:
        return Unknown("the node was suspended")
    if poll.ended - restarted.at > LONGEST_WAIT:
        return Unknown(f"not touched for {LONGEST_WAIT:g} s")
    if abs(check.monotonic(restarted.unix) - restarted.at) > _SET:
        return Unknown("the node's clock was set")
    if not isinstance(poll.result, Mark) or (before is not None and before.poll.result == poll.result):
        return None
    start = _start(restarted, check)
    if start is None:
        return Unknown("the runtime does not return when the container was started")
    if start > poll.ended:
        return None
    touched = check.monotonic(poll.result.changed / 1e9)
    if touched > poll.ended + _TICK or (before is not None and touched < before.poll.began - _TICK):
        return Unknown("the file's time contradicts the checks")
    if before is None or before.poll.began < start:
        return Step(start, start, min(touched, poll.ended)) if touched > start else None
    earliest = before.poll.began
    return Step(start, earliest, min(max(touched, earliest), poll.ended))


def _start(restarted: Restarted, check: FileCheck) -> float | None:
    """Return the moment from which touches count; None if it is unknown."""
    if not restarted.by_kubelet:
        return restarted.at
    return max(restarted.at, check.monotonic(check.started_at)) if check.started_at is not None else None


def seen(before: FileCheck | None, check: FileCheck) -> FileCheck | None:
    """Return the last check that found the file, or found that there is none, after one more check."""
    return before if check.poll.result in (Blank.PAUSED, Blank.UNKNOWN) else check
