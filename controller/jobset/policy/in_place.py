"""Restarts in place from the JobSet's side: their cost, their conditions and Events, and when none may begin. Pure.

The rounds restart the members (``controller.rounds``); the JobSet provides the policy and keeps the count. A round
costs one of ``maxRestarts`` if a fault caused it and it was not cancelled. Requests, suspensions, resumptions and
recreated pods cost nothing (upstream counts the attempts of pods, so each of them costs one).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.children import buckets
from kubemend.controller.jobset.plan import EventType, ObservedState
from kubemend.controller.jobset.policy import failure_policy as failure
from kubemend.controller.jobset.policy import template_drift
from kubemend.controller.jobset.spec.model import JobSet, RoundView, Status
from kubemend.controller.jobset.status_builder import StatusBuilder

CANCELLED: Final = "Cancelled"
"""Reason of a round whose Restart was deleted, or whose JobSet was suspended, deleted or recreated."""
REACHED_MAX_RESTARTS: Final = failure.REACHED_MAX_RESTARTS
"""Reason of a refusal for good: ``used`` had reached ``limit``."""
RESTARTED_EVENT: Final = "InPlaceRestarted"
FAILED_EVENT: Final = "InPlaceRestartFailed"

_RESTARTING: Final = "Restarting"
_RESTARTED: Final = "Restarted"
_FAILED: Final = "RestartFailed"
_CANCELLED: Final = "RestartCancelled"
_GONE: Final = "restart in place cancelled: its Restart object was deleted"
_LONGEST_MESSAGE: Final = 512
_CUT_SECONDS: Final = 1.0
_CLOCKS_APART_SECONDS: Final = 2.0
_SOON: Final = 10.0  # seconds; shorter restarts are reported in milliseconds


class Closed(enum.StrEnum):
    """Why no round of a JobSet's gang may begin, and one under way is cancelled."""

    DELETING = "Deleting"
    COMPLETED = "Completed"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    RECREATING = "Recreating"
    INVALID = "Invalid"
    RESTARTED_ELSEWHERE = "Restarted in place by its own controller"


@dataclass(frozen=True, slots=True)
class GangPolicy:
    """A JobSet's policy for its gang's rounds.

    ``limit``: number of restarts that count, in place of the operator's rounds per window; None: it sets no limit.
    ``used`` of them are used up. ``closed`` is "" or a ``Closed``.
    """

    limit: int | None = None
    used: int = 0
    closed: str = ""


def policy(observed: ObservedState) -> GangPolicy:
    """Return the policy of a JobSet of any strategy. Without restarts in place it only has ``closed``."""
    jobset = observed.jobset
    limit = _limit(jobset)
    used = failure.counted_restarts(jobset.status)
    if limit is not None:
        used += sum(_costs(each) for each in _own(observed) if each.attempt > _cursor(jobset.status))
    return GangPolicy(limit, used, _closed(observed) or "")


def account(observed: ObservedState, *, draft: StatusBuilder) -> None:
    """Count the rounds that have ended since the last one counted, and report them.

    ``restarts_counted`` never passes maxRestarts, even if a round began next to a restart of the whole JobSet.
    """
    limit = _limit(observed.jobset)
    if limit is None:
        return
    rounds = _own(observed)
    _set_condition(rounds, draft=draft)
    newest = max((each.attempt for each in rounds if each.ended_at is not None), default=0)
    over = [each for each in rounds if _cursor(draft.status) < each.attempt <= newest]
    if not over:
        return
    room = max(limit - failure.counted_restarts(draft.status), 0)
    cost = min(sum(_costs(each) for each in over), room)
    draft.change(restarts_counted=draft.status.restarts_counted + cost)
    _move_on(newest, draft=draft)
    for each in over:
        _record_end(each, draft=draft)


def supersede(observed: ObservedState, *, draft: StatusBuilder) -> None:
    """Treat the rounds under way as part of a restart of Jobs: it was one failure, and costs one restart."""
    if observed.jobset.spec.is_in_place:
        _move_on(max((each.attempt for each in _own(observed)), default=0), draft=draft)


def end_if_spent(observed: ObservedState, *, draft: StatusBuilder) -> None:
    """Fail the JobSet if a member failed with no restart left for it, unless all members have started again since."""
    refusal = observed.refusal
    if _limit(observed.jobset) is None or refusal is None or refusal.reason != REACHED_MAX_RESTARTS:
        return
    if conditions.is_true(draft.status, conditions.SUSPENDED):
        return  # its resumption is yet to come; the failure happened before the suspension
    if refusal.at > _last_start(observed, draft.status):
        failure.fail(draft, reason=REACHED_MAX_RESTARTS, message=failure.REACHED_MAX_RESTARTS_MESSAGE)


def _limit(jobset: JobSet) -> int | None:
    failure_policy = jobset.spec.failure
    return failure_policy.max_restarts if failure_policy is not None and jobset.spec.is_in_place else None


def _own(observed: ObservedState) -> list[RoundView]:
    """Return its own rounds: those of a deleted JobSet of the same name may still exist."""
    return [each for each in observed.rounds if _is_of(observed.jobset, each)]


def _is_of(jobset: JobSet, one: RoundView) -> bool:
    """Compare owners, or times if the owner is unknown: the round's by this clock, the JobSet's by the API server's."""
    if one.owner_uid:
        return one.owner_uid == jobset.uid
    return one.started_at >= jobset.created_at - _CLOCKS_APART_SECONDS


def _cursor(status: Status) -> int:
    return status.current_in_place or 0


def _costs(one: RoundView) -> bool:
    cancelled = one.ended_at is not None and not one.restarted and one.reason == CANCELLED
    return one.counted and not cancelled


def _closed(observed: ObservedState) -> Closed | None:
    jobset = observed.jobset
    if jobset.deleting:
        return Closed.DELETING
    if (end := conditions.finished(jobset.status)) is not None:
        return Closed.COMPLETED if end.type == conditions.COMPLETED else Closed.FAILED
    if jobset.spec.suspend:
        return Closed.SUSPENDED
    jobs = template_drift.partition(jobset, buckets.sort(jobset.status, observed.jobs)).buckets
    return Closed.RECREATING if jobs.previous else None


def _last_start(observed: ObservedState, status: Status) -> float:
    """Return when members were last started, as far as it is known: by a round, a restart or a resumption.

    The two conditions have the time while it happens and, then False, after it. Times in a status are cut to whole
    seconds, and nothing fails within the second in which it was resumed: such a failure happened before.
    """
    starts = [observed.jobset.created_at, *(each.started_at for each in _own(observed))]
    # The status before this reconcile: if this one finds all ready, a refused fault occurred after they had started.
    if (restarting := observed.jobset.status.condition(conditions.RESTARTING)) is not None:
        starts.append(restarting.since)
    if (suspended := status.condition(conditions.SUSPENDED)) is not None:
        starts.append(suspended.since + _CUT_SECONDS)
    return max(starts)


def _move_on(attempt: int, *, draft: StatusBuilder) -> None:
    if attempt > _cursor(draft.status):
        previous = max(draft.status.previous_in_place or 0, attempt - 1)
        draft.change(current_in_place=attempt, previous_in_place=previous)


def _set_condition(rounds: Sequence[RoundView], *, draft: StatusBuilder) -> None:
    newest = max(rounds, key=lambda each: each.attempt, default=None)
    if newest is not None:
        is_so, reason = newest.ended_at is None, _reason(newest)
        draft.set_condition(conditions.IN_PLACE, is_so=is_so, reason=reason, message=_message(newest), event=None)
    elif conditions.is_true(draft.status, conditions.IN_PLACE):
        draft.set_condition(conditions.IN_PLACE, is_so=False, reason=_CANCELLED, message=_GONE, event=None)


def _record_end(one: RoundView, *, draft: StatusBuilder) -> None:
    reason = _reason(one)
    if reason == _RESTARTED:
        draft.count("restarted_in_place")
        draft.add_event(EventType.NORMAL, reason=RESTARTED_EVENT, message=_message(one))
    elif reason == _FAILED:
        draft.add_event(EventType.WARNING, reason=FAILED_EVENT, message=_message(one))


def _reason(one: RoundView) -> str:
    if one.ended_at is None:
        return _RESTARTING
    if one.restarted:
        return _RESTARTED
    return _CANCELLED if one.reason == CANCELLED else _FAILED


def _message(one: RoundView) -> str:
    outcome = {
        _RESTARTING: "restarting in place",
        _RESTARTED: f"restarted in place in {_span(one.seconds)}",
        _CANCELLED: "restart in place cancelled",
        _FAILED: "restart in place failed",
    }[_reason(one)]
    reason = one.message or one.reason
    whole = f"{outcome}, attempt {one.attempt}" + (f": {reason}" if reason else "")
    return whole[:_LONGEST_MESSAGE]


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < _SOON else f"{seconds:.1f} s"
