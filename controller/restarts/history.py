"""Find Restart objects to remove: finished ones that expire, and rounds that no leader continues. Pure."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kubemend.common.gangs import GangKey
from kubemend.controller.restarts.objects import Restart


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long objects are kept. ``ttl`` is in seconds; ``newest`` of a gang outlast it while the gang has members."""

    ttl: float = 24 * 3600.0
    newest: int = 10


@dataclass(frozen=True, slots=True)
class Removal:
    """The objects to remove now, and the Unix time of the next check; None: after the next change."""

    now: tuple[Restart, ...]
    next_at: float | None


def removal(
    restarts: Iterable[Restart], *, keeping: Keeping, is_alive: Callable[[GangKey], bool], now: float
) -> Removal:
    """Return the objects to remove; ``is_alive`` returns whether a gang has members, ``now`` is Unix time.

    An object with its own TTL is kept for exactly that, like a Job. Others stay for the controller's TTL. The newest
    ones of a gang with members stay longer: they are its history, and their numbers must not be reused.
    """
    finished = [each for each in restarts if each.is_finished and not each.deleting]
    ends = {
        each.uid: each.finished_at + each.spec.ttl_seconds for each in finished if each.spec.ttl_seconds is not None
    }
    kept = _newest(finished, keeping=keeping, is_alive=is_alive)
    for each in finished:
        if each.uid not in kept:
            ends.setdefault(each.uid, each.finished_at + keeping.ttl)
    return Removal(
        now=tuple(each for each in finished if ends.get(each.uid, now + 1) <= now),
        next_at=min((end for end in ends.values() if end > now), default=None),
    )


def superseded(restarts: Iterable[Restart]) -> tuple[Restart, ...]:
    """Return the unfinished rounds that are followed by another one of their gang.

    A gang has one at a time. So their leader lost the Lease while it wrote, or could not write their end. Resuming one,
    maybe hours later, would stop a running gang.
    """
    rounds = [each for each in restarts if each.is_round]
    newest: dict[GangKey | None, tuple[int, int]] = {}
    for each in rounds:
        newest[each.gang] = max(newest.get(each.gang, (0, 0)), (each.epoch, each.attempt))
    return tuple(each for each in rounds if not each.is_finished and (each.epoch, each.attempt) < newest[each.gang])


def _newest(finished: list[Restart], *, keeping: Keeping, is_alive: Callable[[GangKey], bool]) -> set[str]:
    """Return the UIDs of the newest objects of each gang with members."""
    rounds = [(each.gang, each) for each in finished if each.gang is not None]
    rounds.sort(key=lambda pair: (pair[0], -pair[1].attempt, -pair[1].created_at))
    return {
        restart.uid
        for gang, group in itertools.groupby(rounds, key=lambda pair: pair[0])
        if is_alive(gang)
        for _, restart in itertools.islice(group, keeping.newest)
    }
