"""Which Restart objects are over: finished ones that are removed, and rounds that nobody goes on with. Pure."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from common.gangs import GangKey
from controller.restarts.objects import Restart


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is kept. ``ttl`` is in seconds, ``newest`` how many of each gang outlast it while the gang has members."""

    ttl: float = 24 * 3600.0
    newest: int = 10


@dataclass(frozen=True, slots=True)
class Removal:
    """What to remove now, and at which Unix time to ask again; None: when something has changed."""

    now: tuple[Restart, ...]
    next_at: float | None


def removal(
    restarts: Iterable[Restart], *, keeping: Keeping, is_alive: Callable[[GangKey], bool], now: float
) -> Removal:
    """Decide; ``is_alive`` says whether a gang has members, ``now`` is Unix time.

    An object that names a TTL goes by that alone, as a Job does. Others stay for the controller's; the newest ones of
    a gang that is there stay longer: they are its history, and their numbers must not be used again.
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
    """Return the rounds without an end that another one of their gang has followed.

    A gang has one at a time. So their leader lost the Lease while it wrote, or could not write how they ended; to go
    on with one, hours later perhaps, would stop a gang that runs.
    """
    rounds = [each for each in restarts if each.is_round]
    newest: dict[GangKey | None, tuple[int, int]] = {}
    for each in rounds:
        newest[each.gang] = max(newest.get(each.gang, (0, 0)), (each.epoch, each.attempt))
    return tuple(each for each in rounds if not each.is_finished and (each.epoch, each.attempt) < newest[each.gang])


def _newest(finished: list[Restart], *, keeping: Keeping, is_alive: Callable[[GangKey], bool]) -> set[str]:
    """Return the UIDs of each living gang's newest ones."""
    rounds = [(each.gang, each) for each in finished if each.gang is not None]
    rounds.sort(key=lambda pair: (pair[0], -pair[1].attempt, -pair[1].created_at))
    return {
        restart.uid
        for gang, group in itertools.groupby(rounds, key=lambda pair: pair[0])
        if is_alive(gang)
        for _, restart in itertools.islice(group, keeping.newest)
    }
