"""Decide whether a JobSet has completed. Pure. Source: upstream's success_policy.go."""

from collections.abc import Sequence
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.spec.model import ChildJob, Operator, Spec
from kubemend.controller.jobset.status_builder import StatusBuilder

ALL_JOBS_COMPLETED: Final = "AllJobsCompleted"
MESSAGE: Final = "jobset completed successfully"
_JOBSET_COMPLETED: Final = "JobSetCompleted"


def is_met(spec: Spec, successful: Sequence[ChildJob]) -> bool:
    """Return whether enough Jobs of the success policy's targets have succeeded: one, or all of them."""
    targets = frozenset(spec.success.targets) or frozenset(each.name for each in spec.replicated_jobs)
    done = sum(not spec.success.targets or job.replicated_job in targets for job in successful)
    if spec.success.operator is Operator.ANY:
        return done >= 1
    return bool(successful) and done >= sum(each.replicas for each in spec.replicated_jobs if each.name in targets)


def complete(draft: StatusBuilder) -> None:
    """Set the conditions of a completed JobSet."""
    draft.set_condition(conditions.COMPLETED, is_so=True, reason=ALL_JOBS_COMPLETED, message=MESSAGE)
    draft.set_condition(conditions.RESTARTING, is_so=False, reason=_JOBSET_COMPLETED, message=MESSAGE)
    draft.change(terminal_state=conditions.COMPLETED)
    draft.count("completed")
