"""Validate a JobSet: the rules of upstream's webhook (``pkg/webhooks/jobset_webhook.go``) and schema. Pure.

kubemend's admission policy (``daemonset/jobset/policy.yaml``) refuses the same JobSets on creation. It may not be
installed, or a JobSet may be older than it. So the controller validates again, and an invalid JobSet gets a condition
with the reason (``refuse``): until it is fixed it can only be suspended.

Rules about changes are only in the policy, since only it has the old object. The writer, which sees existing claims,
reports one with another spec. ``managedBy`` needs no rule here: another value is another controller's JobSet; the
definition (``daemonset/jobset/crd.yaml``) requires upstream's form of it.
"""

from collections.abc import Sequence
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.plan import EventType
from kubemend.controller.jobset.spec.model import JobSet
from kubemend.controller.jobset.spec.validation import claims, jobs, policies
from kubemend.controller.jobset.spec.validation.problem import Problem
from kubemend.controller.jobset.status_builder import StatusBuilder

__all__ = ["accept", "problems", "refuse"]

_INVALID: Final = "Invalid"
_VALID_AGAIN: Final = "ValidAgain"
_VALID_AGAIN_MESSAGE: Final = "the JobSet is valid again"
_LONGEST: Final = 900  # an Event's note holds 1024 bytes


def problems(jobset: JobSet) -> tuple[Problem, ...]:
    """Return all problems of a JobSet; none if it can be run.

    If a list is too long, only that is reported: its items are not checked.
    """
    spec = jobset.spec
    if too_much := (*jobs.sizes(spec), *policies.sizes(spec), *claims.sizes(spec)):
        return too_much
    return (
        *jobs.problems(jobset),
        *jobs.network_problems(jobset),
        *policies.problems(spec),
        *claims.problems(jobset),
    )


def refuse(found: Sequence[Problem], *, draft: StatusBuilder) -> None:
    """Set the condition with the problems, cut to the length of an Event."""
    text = "; ".join(str(each) for each in found)
    more = "" if len(text) <= _LONGEST else f" … ({len(found)} problems)"
    message = text if not more else text[: _LONGEST - len(more)] + more
    draft.set_condition(conditions.VALID, is_so=False, reason=_INVALID, message=message, event=EventType.WARNING)


def accept(draft: StatusBuilder) -> None:
    """Set the JobSet valid again. One that was never invalid has no condition: upstream's JobSets have none, either."""
    if draft.status.condition(conditions.VALID) is not None:
        draft.set_condition(conditions.VALID, is_so=True, reason=_VALID_AGAIN, message=_VALID_AGAIN_MESSAGE)
