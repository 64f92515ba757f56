"""Decide whether and how a gang may be restarted as one now: a table of rules, of which the first match decides.

If the evidence is inconclusive, nothing is done. A pod that did not opt in, or that no controller would recreate, is
never deleted. What only an agent knows (strategies, a Job's backoffLimit, LeaderWorkerSets) it reports during the
round.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from kubemend.common import budgets
from kubemend.common.coordination import FaultKind
from kubemend.controller.decisions.cases import Case
from kubemend.controller.decisions.facts import Decision, Facts, Kind, Reason
from kubemend.controller.gangs import budget, gang_options, members
from kubemend.controller.model.faults import Fault, Request
from kubemend.controller.model.members import PodPhase

ASK_DRIVER = "AskDriver"
SUSPENDED = "Suspended"
"""``Facts.closed`` of a gang that its owner has suspended."""
RESTARTED_ELSEWHERE = "Restarted in place by its own controller"
"""The same, of a gang that upstream's JobSet controller and its sidecars restart in place."""
_CLOSED = {SUSPENDED: Reason.SUSPENDED, RESTARTED_ELSEWHERE: Reason.JOBSET_RESTARTS}
_ANY_NUMBER = 2**31
_NOTHING_TO_HINT = frozenset({"None", "Observe"})


def decide(facts: Facts, *, now: float) -> Decision:
    """Return the decision about a fault or a request, with its reason. ``now`` is Unix time in seconds."""
    case = Case.of(facts, now=now)
    return next((decision for rule in _RULES if (decision := rule(case)) is not None), None) or _round(case)


_Rule = Callable[[Case], Decision | None]


def _member_hit(case: Case) -> Decision | None:
    cause = case.facts.cause
    if not isinstance(cause, Fault):
        return None
    if not case.facts.members:
        return Decision(Kind.ALONE, Reason.NOT_A_GANG, f"the API server has no pod of gang {cause.gang}")
    if case.hit is None:
        return Decision(Kind.OBSERVE, Reason.MEMBER_GONE, f"pod {cause.pod} is gone, or was replaced")
    if cause.exit_code == 0 or case.hit.phase is PodPhase.SUCCEEDED:
        return Decision(Kind.OBSERVE, Reason.MEMBER_COMPLETED, f"pod {cause.pod} has completed")
    if case.hit.deleting:
        return Decision(Kind.OBSERVE, Reason.MEMBER_GONE, f"pod {cause.pod} is being deleted")
    if case.roster.present[case.hit.slot].pod.uid != cause.pod.uid:
        return Decision(Kind.OBSERVE, Reason.MEMBER_GONE, f"pod {cause.pod} was replaced")
    if cause.container and case.hit.targets and cause.container not in case.hit.targets:
        meant = f"restarts of pod {cause.pod} are for {', '.join(sorted(case.hit.targets))}"
        return Decision(Kind.OBSERVE, Reason.NOT_SELECTED, f"{meant}, and not for {cause.container}")
    return None


def _gang_present(case: Case) -> Decision | None:
    if closed := case.facts.closed:
        reason = _CLOSED.get(closed, Reason.JOBSET_CLOSED)
        return Decision(Kind.OBSERVE, reason, f"the JobSet of gang {case.facts.cause.gang} is {closed.lower()}")
    if slot := case.roster.elsewhere:  # whatever its gang is: a label may have moved it out of its JobSet's
        detail = f"a sidecar of upstream's JobSet controller restarts {slot} in place"
        return Decision(Kind.OBSERVE, Reason.JOBSET_RESTARTS, detail)
    if not case.roster.live and not case.recreate:
        return Decision(Kind.OBSERVE, Reason.MEMBER_GONE, f"no member of gang {case.facts.cause.gang} runs")
    return None


def _annotations_valid(case: Case) -> Decision | None:
    unclear = case.roster.unclear
    return Decision(Kind.OBSERVE, Reason.BAD_ANNOTATION, unclear) if unclear else None


def _opted_in(case: Case) -> Decision | None:
    outside, concerned = case.roster.outside, case.roster.concerned
    if not outside:
        return None
    which = f"{len(outside)} of {concerned} members lack annotation {members.RESTART}: {members.IN_PLACE}"
    return Decision(Kind.OBSERVE, Reason.NOT_OPTED_IN, f"{which}, such as {outside[0]}")


def _device_ready(case: Case) -> Decision | None:
    cause = case.facts.cause
    if not isinstance(cause, Fault):
        return None
    if cause.action_class == ASK_DRIVER:
        return Decision(
            Kind.POSTPONE, Reason.DEVICE_NOT_PROVEN, "only the driver can confirm that the device is usable"
        )
    if cause.kind is FaultKind.DEVICE and cause.action_class in _NOTHING_TO_HINT:
        return Decision(Kind.OBSERVE, Reason.OBSERVED_ONLY, f"{cause.code} asks for no restart")
    return None


def _exit_not_fatal(case: Case) -> Decision | None:
    cause = case.facts.cause
    if isinstance(cause, Fault) and cause.exit_code in case.roster.options.fatal_exit_codes:
        detail = f"exit code {cause.exit_code} is left to the workload ({gang_options.FATAL_EXIT_CODES})"
        return Decision(Kind.FAIL, Reason.FATAL_EXIT_CODE, detail)
    return None


def _alone(case: Case) -> Decision | None:
    """Leave a single-member gang to its agent, unless a JobSet limits restarts: only the controller counts those."""
    is_counted = case.facts.limit is not None
    if isinstance(case.facts.cause, Fault) and len(case.roster.present) == 1 and not case.recreate and not is_counted:
        return Decision(Kind.ALONE, Reason.NOT_A_GANG, "it is the only member of its gang")
    return None


def _replaceable(case: Case) -> Decision | None:
    barred = case.roster.bars.keys() & case.recreate
    if not barred:
        return None
    slot = min(barred)
    kept = members.kept(case.roster.present[slot], case.roster.bars[slot])
    detail = f"{slot} cannot be restarted where it is, and {kept}"
    return Decision(Kind.FAIL, Reason.NOT_REPLACEABLE, detail)


def _affordable(case: Case) -> Decision | None:
    """Exempt requests from the budget. They still count against it."""
    cause = case.facts.cause
    if not isinstance(cause, Fault):
        return None
    fault = budget.Past(
        at=case.now, fault_at=cause.at, slot=case.hit.slot if case.hit is not None else "", code=cause.code
    )
    limit, used = case.facts.limit, case.facts.used
    if limit is not None and used >= limit:
        return Decision(Kind.FAIL, Reason.REACHED_MAX_RESTARTS, f"{used} of maxRestarts {limit} are used up")
    shut = _budget(case).shut(case.facts.history, fault=fault, now=case.now)
    if shut is None:
        return None
    until, reason = shut.closed.until, shut.closed.reason
    opens = "" if math.isinf(until) else f"; it opens again at {budgets.clock(until)}"
    detail = f"the gang's budget is used up: {reason}{opens}" + (f"; {shut.common_cause}" if shut.common_cause else "")
    if shut.verdict is budget.Verdict.SPENT:
        return Decision(Kind.FAIL, Reason.NO_PROGRESS if shut.common_cause else Reason.BUDGET_SPENT, detail)
    return Decision(Kind.POSTPONE, Reason.NO_PROGRESS if shut.common_cause else Reason.BACKOFF, detail, retry_at=until)


def _not_dry_run(case: Case) -> Decision | None:
    if not case.facts.dry_run:
        return None
    would = _round(case)
    detail = f"it would be {would.kind.value}: {would.detail or would.reason.value}"
    return Decision(Kind.OBSERVE, Reason.DRY_RUN, detail)


_DEPARTURES = {
    Reason.MAINTENANCE_PLANNED: "maintenance of its node is planned",
    Reason.EVICTION_REQUESTED: "an EvictionRequest names its pod",
}
_RULES: tuple[_Rule, ...] = (
    _member_hit,
    _gang_present,
    _annotations_valid,
    _opted_in,
    _device_ready,
    _exit_not_fatal,
    _alone,
    _replaceable,
    _affordable,
    _not_dry_run,
)


def _round(case: Case) -> Decision:
    cause = case.facts.cause
    if not case.recreate:
        return Decision(Kind.IN_PLACE, Reason.REQUESTED if isinstance(cause, Request) else Reason.MEMBER_FAILED)
    which = f"{len(case.recreate)} of {len(case.roster.present)} are recreated, such as {min(case.recreate)}"
    if case.recreate == case.moved.keys():
        reason = case.moved[min(case.recreate)]
        which = f"{which}: {_DEPARTURES[reason]}"
    elif isinstance(cause, Request) and cause.recreate:
        reason = Reason.RECREATION_REQUESTED
    else:
        reason = Reason.MEMBERS_LOST
    kind = Kind.RECREATE_ALL if case.roster.live.keys() <= case.recreate else Kind.IN_PLACE_AND_RECREATE
    return Decision(kind, reason, which, recreate=case.recreate)


def _budget(case: Case) -> budget.GangBudget:
    """Return the gang's budget. If a JobSet limits all restarts, a window applies only to gangs that ask for one."""
    most = case.roster.options.max_restarts
    if most is None and case.facts.limit is not None:
        most = _ANY_NUMBER
    return case.facts.budget if most is None else replace(case.facts.budget, limit=most)
