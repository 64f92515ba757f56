"""Restarts in place as a JobSet sees them: what they cost, what is told of them, and when none may begin. Pure.

The rounds restart the members (``controller.rounds``); the JobSet lends them its policy and keeps the count. A round
costs one of ``maxRestarts`` when a fault caused it and it was not cancelled; people's requests, suspensions,
resumptions and recreated pods cost nothing (upstream counts the attempts of pods, so each of them does).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.jobset import buckets, conditions, failure, renewal
from controller.jobset.draft import Draft
from controller.jobset.model import JobSet, RoundView, Status
from controller.jobset.plan import EventType, World

CANCELLED: Final = "Cancelled"
"""Reason of a round that somebody took back, or whose JobSet was suspended, deleted or recreated."""
REACHED_MAX_RESTARTS: Final = failure.REACHED_MAX_RESTARTS
"""Reason of a refusal for good: ``used`` had reached ``limit``."""
RESTARTED_EVENT: Final = "InPlaceRestarted"
FAILED_EVENT: Final = "InPlaceRestartFailed"

_RESTARTING: Final = "Restarting"
_RESTARTED: Final = "Restarted"
_FAILED: Final = "RestartFailed"
_CANCELLED: Final = "RestartCancelled"
_GONE: Final = "restart in place cancelled: its Restart object is gone"
_LONGEST_MESSAGE: Final = 512
_CUT_SECONDS: Final = 1.0
_CLOCKS_APART_SECONDS: Final = 2.0
_SOON: Final = 10.0  # seconds; below them a restart's length is told in milliseconds


class Closed(enum.StrEnum):
    """Why no round of a JobSet's gang may begin, and one that is on is cancelled."""

    DELETING = "Deleting"
    COMPLETED = "Completed"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RECREATING = "Recreating"


@dataclass(frozen=True, slots=True)
class GangPolicy:
    """What a JobSet says about its gang's rounds.

    ``limit``: so many restarts that count, in place of the operator's rounds per window; None: it says nothing about
    that. ``used`` of them are gone. ``closed`` is "" or a ``Closed``.
    """

    limit: int | None = None
    used: int = 0
    closed: str = ""


def policy(world: World) -> GangPolicy:
    """Return it, for a JobSet of any strategy: one that is not restarted in place only says when it is closed."""
    jobset = world.jobset
    limit = _limit(jobset)
    used = failure.counted_restarts(jobset.status)
    if limit is not None:
        used += sum(_costs(each) for each in _own(world) if each.attempt > _cursor(jobset.status))
    return GangPolicy(limit, used, _closed(world) or "")


def account(world: World, *, draft: Draft) -> None:
    """Keep the count of the rounds that are over since the last one that is counted, and tell of them.

    ``restarts_counted`` never passes maxRestarts, though a round has begun beside a restart of the whole.
    """
    limit = _limit(world.jobset)
    if limit is None:
        return
    rounds = _own(world)
    _tell_newest(rounds, draft=draft)
    newest = max((each.attempt for each in rounds if each.ended_at is not None), default=0)
    over = [each for each in rounds if _cursor(draft.status) < each.attempt <= newest]
    if not over:
        return
    room = max(limit - failure.counted_restarts(draft.status), 0)
    cost = min(sum(_costs(each) for each in over), room)
    draft.change(restarts_counted=draft.status.restarts_counted + cost)
    _move_on(newest, draft=draft)
    for each in over:
        _tell_end(each, draft=draft)


def supersede(world: World, *, draft: Draft) -> None:
    """Let a restart of Jobs stand for the rounds that are on: it was one failure, and costs one restart."""
    if world.jobset.spec.is_in_place:
        _move_on(max((each.attempt for each in _own(world)), default=0), draft=draft)


def end_if_spent(world: World, *, draft: Draft) -> None:
    """Fail the JobSet when a member failed and no restart was left for it, unless all have started anew since."""
    refusal = world.refusal
    if _limit(world.jobset) is None or refusal is None or refusal.reason != REACHED_MAX_RESTARTS:
        return
    if conditions.is_true(draft.status, conditions.SUSPENDED):
        return  # its turn has not come yet; whatever failed did so before the suspension
    if refusal.at > _last_start(world, draft.status):
        failure.fail(draft, reason=REACHED_MAX_RESTARTS, message=failure.REACHED_MAX_RESTARTS_MESSAGE)


def _limit(jobset: JobSet) -> int | None:
    failure_policy = jobset.spec.failure
    return failure_policy.max_restarts if failure_policy is not None and jobset.spec.is_in_place else None


def _own(world: World) -> list[RoundView]:
    """Rounds of a deleted JobSet of the same name may still be there."""
    return [each for each in world.rounds if _is_of(world.jobset, each)]


def _is_of(jobset: JobSet, one: RoundView) -> bool:
    """Where the owner is not known the time tells: that of the round by our clock, the JobSet's by the API server's."""
    if one.owner_uid:
        return one.owner_uid == jobset.uid
    return one.started_at >= jobset.created_at - _CLOCKS_APART_SECONDS


def _cursor(status: Status) -> int:
    return status.current_in_place or 0


def _costs(one: RoundView) -> bool:
    cancelled = one.ended_at is not None and not one.restarted and one.reason == CANCELLED
    return one.counted and not cancelled


def _closed(world: World) -> Closed | None:
    jobset = world.jobset
    if jobset.deleting:
        return Closed.DELETING
    if (end := conditions.finished(jobset.status)) is not None:
        return Closed.COMPLETED if end.type == conditions.COMPLETED else Closed.FAILED
    if jobset.spec.suspend:
        return Closed.SUSPENDED
    jobs = renewal.told_apart(jobset, buckets.sort(jobset.status, world.jobs)).buckets
    return Closed.RECREATING if jobs.previous else None


def _last_start(world: World, status: Status) -> float:
    """Return when something was last started anew, as far as it is told: by a round, a restart or a resumption.

    The two conditions tell it while it happens and, by then False, once it has. Times in a status are cut to whole
    seconds, and nothing fails within the second in which it was resumed: what did so failed before.
    """
    starts = [world.jobset.created_at, *(each.started_at for each in _own(world))]
    # As it was: when this very look finds all ready, what is refused has failed since they started.
    if (restarting := world.jobset.status.condition(conditions.RESTARTING)) is not None:
        starts.append(restarting.since)
    if (suspended := status.condition(conditions.SUSPENDED)) is not None:
        starts.append(suspended.since + _CUT_SECONDS)
    return max(starts)


def _move_on(attempt: int, *, draft: Draft) -> None:
    if attempt > _cursor(draft.status):
        previous = max(draft.status.previous_in_place or 0, attempt - 1)
        draft.change(current_in_place=attempt, previous_in_place=previous)


def _tell_newest(rounds: Sequence[RoundView], *, draft: Draft) -> None:
    newest = max(rounds, key=lambda each: each.attempt, default=None)
    if newest is not None:
        is_so, reason = newest.ended_at is None, _reason(newest)
        draft.say(conditions.IN_PLACE, is_so=is_so, reason=reason, message=_message(newest), event=None)
    elif conditions.is_true(draft.status, conditions.IN_PLACE):
        draft.say(conditions.IN_PLACE, is_so=False, reason=_CANCELLED, message=_GONE, event=None)


def _tell_end(one: RoundView, *, draft: Draft) -> None:
    reason = _reason(one)
    if reason == _RESTARTED:
        draft.count("restarted_in_place")
        draft.tell(EventType.NORMAL, reason=RESTARTED_EVENT, message=_message(one))
    elif reason == _FAILED:
        draft.tell(EventType.WARNING, reason=FAILED_EVENT, message=_message(one))


def _reason(one: RoundView) -> str:
    if one.ended_at is None:
        return _RESTARTING
    if one.restarted:
        return _RESTARTED
    return _CANCELLED if one.reason == CANCELLED else _FAILED


def _message(one: RoundView) -> str:
    said = {
        _RESTARTING: "restarting in place",
        _RESTARTED: f"restarted in place in {_span(one.seconds)}",
        _CANCELLED: "restart in place cancelled",
        _FAILED: "restart in place failed",
    }[_reason(one)]
    why = one.message or one.reason
    whole = f"{said}, attempt {one.attempt}" + (f": {why}" if why else "")
    return whole[:_LONGEST_MESSAGE]


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < _SOON else f"{seconds:.1f} s"
