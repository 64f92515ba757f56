"""A replicated Job's template: upstream's webhook's defaults, and type checks of the fields in use. Pure.

Everything else in a template is passed on unread; the API server decides whether the Job is valid.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kubemend.controller.jobset.spec import fields
from kubemend.controller.jobset.spec.model import Json

INDEXED: Final = "Indexed"
"""``completionMode`` of a template without one."""
ON_FAILURE: Final = "OnFailure"
"""``restartPolicy`` of the pods of a template without one."""

_NUMBERS: Final = ("parallelism", "completions", "backoffLimit")
_LISTS: Final = ("tolerations", "schedulingGates")
_CONTAINERS: Final = ("initContainers", "containers")


def effective(template: object, where: str) -> Json:
    """Return a JobTemplateSpec with its defaults in effect. Raises InvalidFieldError."""
    given = fields.mapping(template, where)
    _check_metadata(given, where)
    job, at = fields.mapping(given.get("spec"), f"{where}.spec"), f"{where}.spec"
    for key in _NUMBERS:
        fields.number(job.get(key), f"{at}.{key}", low=fields.INT32_MIN)
    fields.text(job.get("podReplacementPolicy"), f"{at}.podReplacementPolicy")
    pods = _pod_template(job.get("template"), f"{at}.template")
    mode = fields.text(job.get("completionMode"), f"{at}.completionMode") or INDEXED
    return {**given, "spec": {**job, "completionMode": mode, "template": pods}}


def is_indexed(job_spec: Json) -> bool:
    """Return whether each pod of a Job has an index."""
    return (job_spec.get("completionMode") or INDEXED) == INDEXED


def _pod_template(template: object, where: str) -> Json:
    given = fields.mapping(template, where)
    _check_metadata(given, where)
    pod, at = fields.mapping(given.get("spec"), f"{where}.spec"), f"{where}.spec"
    fields.strings(pod.get("nodeSelector"), f"{at}.nodeSelector")
    for key in _LISTS:
        fields.objects(pod.get(key), f"{at}.{key}")
    _named(pod.get("volumes"), f"{at}.volumes")
    for key in _CONTAINERS:
        for index, container in enumerate(_named(pod.get(key), f"{at}.{key}")):
            _named(container.get("volumeMounts"), f"{at}.{key}[{index}].volumeMounts")
    policy = fields.text(pod.get("restartPolicy"), f"{at}.restartPolicy") or ON_FAILURE
    return {**given, "spec": {**pod, "restartPolicy": policy}}


def _check_metadata(template: Mapping[str, Any], where: str) -> None:
    metadata = fields.mapping(template.get("metadata"), f"{where}.metadata")
    fields.strings(metadata.get("labels"), f"{where}.metadata.labels")
    fields.strings(metadata.get("annotations"), f"{where}.metadata.annotations")


def _named(value: object, where: str) -> Sequence[Mapping[str, Any]]:
    found = fields.objects(value, where)
    for index, each in enumerate(found):
        fields.text(each.get("name"), f"{where}[{index}].name")
    return found
