"""Which changes of a Job the API server refuses. Pure.

Source: ``ValidateJobSpecUpdate`` and ``shouldAllowMutablePodTemplate`` in pkg/{apis,registry}/batch of Kubernetes 1.36.
Not checked: what is wrong in a Job from its beginning, and whether a status follows from the one before.
"""

from typing import Any, Final

from hack.devnode.api import errors

Object = dict[str, Any]

_FIXED: Final = (
    "selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy",
)  # fmt: skip
_PLACEMENT: Final = ("nodeSelector", "tolerations", "schedulingGates", "affinity", "containers", "initContainers")


def check_change(old: Object, new: Object) -> None:
    """Raise ApiError 422 when the spec changes in a way that is not allowed."""
    before, after = old.get("spec") or {}, new.get("spec") or {}
    wrong = [field for field in _FIXED if before.get(field) != after.get(field)]
    if before.get("completions") != after.get("completions") and (
        after.get("completionMode") != "Indexed" or after.get("completions") != after.get("parallelism")
    ):
        wrong.append("completions")
    if _fixed_part(old, before.get("template")) != _fixed_part(old, after.get("template")):
        wrong.append("template")
    if wrong:
        why = ", ".join(f"spec.{field}: Invalid value: field is immutable" for field in wrong)
        raise errors.invalid("Job.batch", new["metadata"]["name"], why)


def _fixed_part(job: Object, template: Object | None) -> Object:
    """Return what must stay of a pod template: all but the scheduling parts once the Job has stopped for good."""
    template = template or {}
    if not _is_stopped(job):
        return template
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key not in _PLACEMENT}
    return {"spec": spec}


def _is_stopped(job: Object) -> bool:
    status = job.get("status") or {}
    told = any(each["type"] == "Suspended" and each["status"] == "True" for each in status.get("conditions") or ())
    never_ran = status.get("startTime") is None
    return bool((job.get("spec") or {}).get("suspend")) and (never_ran or told) and not status.get("active")
