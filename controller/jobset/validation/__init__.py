"""Whether a JobSet can be run: the rules of upstream's webhook (``pkg/webhooks/jobset_webhook.go``) and schema. Pure.

The admission policy of ours (``daemonset/jobset/policy.yaml``) refuses the same JobSets before they are there. It may
not be installed, or a JobSet may be older; so the controller asks again, and an invalid JobSet fails with the reason.
Rules about changes are the policy's alone, since only it knows the old object; that a claim in the way has another spec
is the writer's, who sees it. ``managedBy`` needs no rule here: another value is another controller's JobSet;
the definition (``daemonset/jobset/crd.yaml``) asks for upstream's form of it.
"""

from controller.jobset.model import JobSet
from controller.jobset.validation import claims, coordination, jobs, policies
from controller.jobset.validation.problem import Problem

__all__ = ["Problem", "problems"]


def problems(jobset: JobSet) -> tuple[Problem, ...]:
    """Return everything that is wrong with a JobSet; nothing for one that can be run.

    Of one that has too much of something only that is told: what there is too much of is not gone through.
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
