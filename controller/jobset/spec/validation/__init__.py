"""Validate a JobSet: the rules of upstream's webhook (``pkg/webhooks/jobset_webhook.go``) and schema. Pure.

kubemend's admission policy (``daemonset/jobset/policy.yaml``) refuses the same JobSets on creation. It may not be
installed, or a JobSet may be older than it. So the controller validates again, and an invalid JobSet gets a condition
with the reason.

Rules about changes are only in the policy, since only it has the old object. The writer, which sees existing claims,
reports one with another spec. ``managedBy`` needs no rule here: another value is another controller's JobSet; the
definition (``daemonset/jobset/crd.yaml``) requires upstream's form of it.
"""

from kubemend.controller.jobset.spec.model import JobSet
from kubemend.controller.jobset.spec.validation import claims, coordination, jobs, policies
from kubemend.controller.jobset.spec.validation.problem import Problem

__all__ = ["Problem", "problems"]


def problems(jobset: JobSet) -> tuple[Problem, ...]:
    """Return all problems of a JobSet; none if it can be run.

    If a list is too long, only that is reported: its items are not checked.
    """
    spec = jobset.spec
    if too_much := (*jobs.sizes(spec), *policies.sizes(spec), *claims.sizes(spec)):
        return too_much
    return (
        *jobs.problems(jobset),
        *coordination.problems(jobset),
        *policies.problems(spec),
        *claims.problems(jobset),
    )
