"""Convert objects of the API to JobSets and Jobs, with the defaults in effect. Pure.

Unknown fields are ignored. A known field with an invalid value raises ``InvalidFieldError`` for the whole object: with
only a part of it kubemend would run a JobSet that its author did not write.
"""

import functools
import re
from typing import Any, Final

from kubemend.common.kube import safe_json
from kubemend.controller.jobset import conditions as conditions_module
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import exclusive
from kubemend.controller.jobset.spec import fields, specs
from kubemend.controller.jobset.spec.fields import InvalidFieldError
from kubemend.controller.jobset.spec.model import (
    ChildJob,
    Condition,
    JobEnd,
    JobSet,
    Json,
    ReplicatedJobStatus,
    Status,
)

__all__ = ["InvalidFieldError", "indexes", "is_failed_index", "job", "jobset"]

MOST_INDEXES: Final = 100_000
"""Indexes of a Job with ``backoffLimitPerIndex`` (batch/v1, ``completions``): ``failedIndexes`` never has more."""

_LABEL_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_INDEX_RANGE: Final = re.compile(r"(?P<first>[0-9]{1,10})(?:-(?P<last>[0-9]{1,10}))?", re.ASCII)


def jobset(obj: Json) -> JobSet:
    """Return the JobSet in an object. Raises InvalidFieldError."""
    whole = fields.mapping(obj, "JobSet")
    meta = fields.mapping(whole.get("metadata"), "metadata")
    name = fields.name(meta.get("name"), "metadata.name")
    fields.shallow(whole.get("spec"), "spec")
    return JobSet(
        namespace=fields.name(meta.get("namespace"), "metadata.namespace"),
        name=name,
        uid=fields.name(meta.get("uid"), "metadata.uid"),
        spec=specs.spec(fields.mapping(whole.get("spec"), "spec"), name),
        status=_status(fields.mapping(whole.get("status"), "status")),
        resource_version=fields.text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        generation=fields.number(meta.get("generation"), "metadata.generation", high=2**63 - 1) or 0,
        created_at=fields.moment(meta.get("creationTimestamp"), "metadata.creationTimestamp"),
        deleting=meta.get("deletionTimestamp") is not None,
        labels=fields.strings(meta.get("labels"), "metadata.labels"),
        annotations=fields.strings(meta.get("annotations"), "metadata.annotations"),
    )


def job(obj: Json) -> ChildJob:
    """Return the fields of a Job that its JobSet needs. Raises InvalidFieldError."""
    whole = fields.mapping(obj, "Job")
    meta = fields.mapping(whole.get("metadata"), "metadata")
    spec = fields.mapping(whole.get("spec"), "spec")
    status = fields.mapping(whole.get("status"), "status")
    labels = fields.mapping(meta.get("labels"), "metadata.labels")
    annotations = fields.mapping(meta.get("annotations"), "metadata.annotations")
    suspended = fields.flag(spec.get("suspend"), "spec.suspend", default=False)
    parallelism = fields.number(spec.get("parallelism"), "spec.parallelism")
    return ChildJob(
        name=fields.name(meta.get("name"), "metadata.name"),
        uid=fields.name(meta.get("uid"), "metadata.uid"),
        replicated_job=fields.text(labels.get(naming.REPLICATED_JOB_NAME), "metadata.labels"),
        index=_label_number(labels.get(naming.JOB_INDEX)),
        attempt=_label_number(labels.get(naming.RESTART_ATTEMPT)),
        job_attempt=_label_number(labels.get(naming.JOB_RESTART_ATTEMPT)),
        suspended=suspended,
        started=status.get("startTime") is not None,
        deleting=meta.get("deletionTimestamp") is not None,
        gated=_is_gated(spec),
        parallelism=1 if parallelism is None else parallelism,
        completions=fields.number(spec.get("completions"), "spec.completions"),
        active=fields.number(status.get("active"), "status.active") or 0,
        ready=fields.number(status.get("ready"), "status.ready") or 0,
        succeeded=fields.number(status.get("succeeded"), "status.succeeded") or 0,
        failed=fields.number(status.get("failed"), "status.failed") or 0,
        end=_end(status),
        failed_indexes=fields.text(status.get("failedIndexes"), "status.failedIndexes"),
        made_of=fields.text(annotations.get(naming.MADE_OF), "metadata.annotations"),
        resource_version=fields.text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        template=_resumed_template(spec, annotations.get(naming.PLACED_BY)) if suspended else None,
    )


def indexes(text: str) -> frozenset[int]:
    """Return the indexes in ``status.failedIndexes`` or ``completedIndexes``, such as ``1,3-5,7``.

    Raises InvalidFieldError, also for more than MOST_INDEXES: a range is cheap to write, but takes memory here.
    """
    found: set[int] = set()
    listed = 0  # a range may be repeated
    for part in text.split(",") if text else ():
        match = _INDEX_RANGE.fullmatch(part)
        if match is None:
            raise InvalidFieldError(
                "indexes", what=f"{part[:40]!r} is not a valid range", hint="write a list such as 1,3-5,7"
            )
        first = int(match["first"])
        last = first if match["last"] is None else int(match["last"])
        listed += max(0, last - first + 1)
        if listed > MOST_INDEXES:
            raise InvalidFieldError("indexes", what="are too many", hint=f"keep to {MOST_INDEXES} indexes")
        found.update(range(first, last + 1))
    return frozenset(found)


def is_failed_index(index: str, failed_indexes: str) -> bool:
    """Return whether an index (a pod's label) is among a Job's ``status.failedIndexes``; False if either is invalid."""
    return index.isdecimal() and int(index) in _known_indexes(failed_indexes)


@functools.lru_cache(maxsize=256)
def _known_indexes(text: str) -> frozenset[int]:
    try:
        return indexes(text)
    except InvalidFieldError:
        return frozenset()


def _status(status: Json) -> Status:
    conditions = fields.objects(status.get("conditions"), "status.conditions")
    jobs = fields.objects(status.get("replicatedJobsStatus"), "status.replicatedJobsStatus")
    return Status(
        conditions=tuple(_condition(each, f"status.conditions[{i}]") for i, each in enumerate(conditions)),
        restarts=_count(status, "restarts", where="status"),
        restarts_counted=_count(status, "restartsCountTowardsMax", where="status"),
        terminal_state=fields.text(status.get("terminalState"), "status.terminalState"),
        replicated_jobs=tuple(_job_status(each, f"status.replicatedJobsStatus[{i}]") for i, each in enumerate(jobs)),
        previous_in_place=_attempt(status, "previousInPlaceRestartAttempt"),
        current_in_place=_attempt(status, "currentInPlaceRestartAttempt"),
    )


def _condition(given: Json, where: str) -> Condition:
    kind = fields.name(given.get("type"), f"{where}.type")
    return Condition(
        type=kind,
        status=given.get("status") == "True",
        reason=fields.text(given.get("reason"), f"{where}.reason"),
        message=fields.text(given.get("message"), f"{where}.message"),
        since=fields.moment(given.get("lastTransitionTime"), f"{where}.lastTransitionTime"),
        foreign=None if kind in conditions_module.OURS else given,
    )


def _job_status(given: Json, where: str) -> ReplicatedJobStatus:
    return ReplicatedJobStatus(
        name=fields.name(given.get("name"), f"{where}.name"),
        ready=_count(given, "ready", where=where),
        succeeded=_count(given, "succeeded", where=where),
        failed=_count(given, "failed", where=where),
        active=_count(given, "active", where=where),
        suspended=_count(given, "suspended", where=where),
        job_restarts=_counts(given, "jobRestarts", where=where),
        job_restarts_counted=_counts(given, "jobRestartsCountTowardsMax", where=where),
    )


def _count(given: Json, key: str, *, where: str) -> int:
    return fields.number(given.get(key), f"{where}.{key}") or 0


def _counts(given: Json, key: str, *, where: str) -> tuple[int, ...]:
    at = f"{where}.{key}"
    return tuple(fields.number(each, at) or 0 for each in fields.items(given.get(key), at))


def _attempt(status: Json, key: str) -> int | None:
    return fields.number(status.get(key), f"status.{key}")


def _end(status: Json) -> JobEnd | None:
    """Return the first of Complete and Failed that is True, like upstream (``JobFinished``)."""
    for given in fields.objects(status.get("conditions"), "status.conditions"):
        if given.get("type") in ("Complete", "Failed") and given.get("status") == "True":
            return JobEnd(
                failed=given["type"] == "Failed",
                reason=fields.text(given.get("reason"), "status.conditions[].reason"),
                message=fields.text(given.get("message"), "status.conditions[].message"),
                at=fields.moment(given.get("lastTransitionTime"), "status.conditions[].lastTransitionTime"),
            )
    return None


def _label_number(value: object) -> int | None:
    """Return a label's number; None if it is missing or invalid: upstream never recovers from such a label."""
    if not isinstance(value, str) or not _LABEL_NUMBER.fullmatch(value):
        return None
    found = int(value)
    return found if found < fields.INT32_MAX else None  # the next run's number must fit, too


def _is_gated(spec: Json) -> bool:
    template = fields.mapping(spec.get("template"), "spec.template")
    pod = fields.mapping(template.get("spec"), "spec.template.spec")
    return exclusive.GATE_ENTRY in fields.objects(pod.get("schedulingGates"), "spec.template.spec.schedulingGates")


def _resumed_template(spec: Json, placed_by: object) -> Json:
    """Return the fields that a resume merges into, as a PodTemplateSpec with nothing else.

    ``former`` has those of its spec that the JobSet's template of the creation, or of the last resume, has set.
    """
    template = fields.mapping(spec.get("template"), "spec.template")
    meta = fields.mapping(template.get("metadata"), "spec.template.metadata")
    pod = fields.mapping(template.get("spec"), "spec.template.spec")
    at = "spec.template.spec"
    kept: dict[str, Any] = {
        "metadata": {
            "labels": fields.strings(meta.get("labels"), "spec.template.metadata.labels"),
            "annotations": fields.strings(meta.get("annotations"), "spec.template.metadata.annotations"),
        },
        "spec": {"nodeSelector": fields.strings(pod.get("nodeSelector"), f"{at}.nodeSelector")},
    }
    for key in ("tolerations", "schedulingGates"):
        kept["spec"][key] = fields.objects(pod.get(key), f"{at}.{key}")
    former = _former(placed_by)
    return kept | {"former": former} if former else kept


def _former(text: object) -> Json:
    """Parse the annotation PLACED_BY; an invalid one, which only its JobSet's user can write, is as good as none."""
    if not isinstance(text, str) or len(text) > naming.MOST_PLACED_BY:
        return {}
    try:
        found = fields.mapping(safe_json.loads(text.encode()), naming.PLACED_BY)
        selector = fields.strings(found.get("nodeSelector"), naming.PLACED_BY)
        lists = {key: fields.objects(found.get(key), naming.PLACED_BY) for key in ("tolerations", "schedulingGates")}
    except ValueError:
        return {}
    return {key: value for key, value in {"nodeSelector": selector, **lists}.items() if value}
