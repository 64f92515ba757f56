"""Build a JobSet's Jobs and the headless Service that gives their pods DNS names, and resume suspended Jobs. Pure.

Source: constructJob, labelAndAnnotateObject and resumeJob of upstream's ``pkg/controllers/jobset_controller.go``, the
last one without three of its defects. There, tolerations and gates come back in the order of Go's maps, each resume
adds a toleration with ``tolerationSeconds`` again, and nothing that a resume has added is ever removed
(kubernetes-sigs/jobset#1294). Templates have their defaults in effect (``controller.jobset.spec.templates``).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubemend.controller.gangs import members
from kubemend.controller.jobset.children import caches, naming, volume_claims
from kubemend.controller.jobset.placement import exclusive
from kubemend.controller.jobset.plan import ResumeJob
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.policy.template_changes import TemplateHash
from kubemend.controller.jobset.spec.model import NO_JSON, ChildJob, JobSet, Json, ReplicatedJob

_NOTHING: Final[Mapping[str, str]] = {}


class JobBuilder:
    """Builder of the Jobs of one replicated Job, all for one restart ``attempt`` (``status.restarts``).

    Their common parts are computed once and **shared** between the bodies, down to the JobSet's own templates. A body
    is only for sending: it must not be modified. So a JobSet of a thousand Jobs is built in about ten milliseconds.
    """

    def __init__(self, jobset: JobSet, replicated_job: ReplicatedJob, *, attempt: int) -> None:
        self._jobset = jobset
        self._replicated_job = replicated_job
        every = jobset.spec.replicated_jobs
        group = naming.group(every, replicated_job.group)
        self._first = naming.first_index(every, replicated_job.name)
        self._first_of_group = naming.first_index(group, replicated_job.name)
        common = _common(jobset, replicated_job, attempt=attempt)
        annotations = exclusive.annotations(jobset, replicated_job)
        meta, pod_meta = _meta(replicated_job.template), _meta(replicated_job.pod_template)
        self._labels = {**_strings(meta, "labels"), **common}
        self._annotations = {
            **_strings(meta, "annotations"),
            **common,
            **annotations,
            naming.MADE_OF: str(template_changes.made_of(replicated_job)),
            **({naming.PLACED_BY: placed_by} if (placed_by := _placed_by(replicated_job)) else {}),
        }
        self._pod_meta = pod_meta
        self._pod_labels = {**_strings(pod_meta, "labels"), **common}
        self._pod_annotations = {
            **_opt_in_annotation(jobset),
            **_strings(pod_meta, "annotations"),
            **common,
            **annotations,
        }
        self._spec, self._pod_spec = _specs(jobset, replicated_job)
        self._by_node_selector = exclusive.wants_labelled_nodes(jobset, replicated_job)
        self._pod_spec = caches.with_cache(self._pod_spec, self._pod_annotations)
        if exclusive.wants_domain(jobset, replicated_job):
            self._pod_labels |= exclusive.LABELS
            self._pod_spec["schedulingGates"] = [*(self._pod_spec.get("schedulingGates") or ()), exclusive.GATE_ENTRY]
        self._owners = [naming.controller_reference(jobset)]

    def job(self, index: int, *, job_attempt: int | None = None) -> dict[str, Any]:
        """Return the body of the Job with this index; ``job_attempt`` counts its own restarts, None if it had none."""
        name = naming.job_name(self._jobset.name, self._replicated_job.name, index)
        own = {
            naming.JOB_INDEX: str(index),
            naming.JOB_KEY: naming.job_key(self._jobset.namespace, name),
            naming.JOB_GLOBAL_INDEX: str(self._first + index),
            naming.JOB_GROUP_INDEX: str(self._first_of_group + index),
        }
        if job_attempt is not None:
            own[naming.JOB_RESTART_ATTEMPT] = str(job_attempt)
        template = {
            **self._replicated_job.pod_template,
            "metadata": {
                **self._pod_meta,
                "labels": {**self._pod_labels, **own},
                "annotations": {**self._pod_annotations, **own},
            },
            "spec": self._pod_spec_of(name),
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": self._jobset.namespace,
                "labels": {**self._labels, **own},
                "annotations": {**self._annotations, **own},
                "ownerReferences": self._owners,
            },
            "spec": {**self._spec, "template": template},
        }

    def _pod_spec_of(self, job: str) -> dict[str, Any]:
        if not self._by_node_selector:
            return self._pod_spec
        value = naming.namespaced_job(self._jobset.namespace, job)
        tolerations = self._pod_spec.get("tolerations") or ()
        return {
            **self._pod_spec,
            "nodeSelector": {**(self._pod_spec.get("nodeSelector") or {}), naming.NAMESPACED_JOB: value},
            "tolerations": [*tolerations, {"key": naming.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}],
        }


def job(
    jobset: JobSet, replicated_job: ReplicatedJob, index: int, *, attempt: int, job_attempt: int | None = None
) -> dict[str, Any]:
    """Return the body of one Job.

    For several of one replicated Job use a ``JobBuilder``, which computes common parts once.
    """
    return JobBuilder(jobset, replicated_job, attempt=attempt).job(index, job_attempt=job_attempt)


def _common(jobset: JobSet, replicated_job: ReplicatedJob, *, attempt: int) -> dict[str, str]:
    """Return the labels and annotations that all Jobs of a replicated Job and their pods have."""
    every = jobset.spec.replicated_jobs
    marked = {
        naming.JOBSET_NAME: jobset.name,
        naming.JOBSET_UID: jobset.uid,
        naming.REPLICATED_JOB_NAME: replicated_job.name,
        naming.RESTART_ATTEMPT: str(attempt),
        naming.REPLICATED_JOB_REPLICAS: str(replicated_job.replicas),
        naming.GLOBAL_REPLICAS: str(naming.replicas(every)),
        naming.GROUP_NAME: replicated_job.group,
        naming.GROUP_REPLICAS: str(naming.replicas(naming.group(every, replicated_job.group))),
    }
    if (address := naming.coordinator(jobset)) is not None:
        marked[naming.COORDINATOR] = address
    return marked


def _opt_in_annotation(jobset: JobSet) -> dict[str, str]:
    """Return the annotation that opts pods in for rounds if the JobSet asks for them; the template's own value wins."""
    return {members.RESTART: members.IN_PLACE} if jobset.spec.is_in_place else {}


def _specs(jobset: JobSet, replicated_job: ReplicatedJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Job's spec and its pods' spec: as written, with the values that the JobSet sets."""
    spec = {**replicated_job.job_spec, "suspend": jobset.spec.suspend}
    pod_spec = dict(replicated_job.pod_template.get("spec") or {})
    if jobset.spec.network.dns_hostnames:
        pod_spec["subdomain"] = jobset.spec.network.subdomain
    if added := volume_claims.volumes(jobset, pod_spec):
        pod_spec["volumes"] = [*(pod_spec.get("volumes") or ()), *added]
    return spec, pod_spec


def _meta(template: Json) -> Json:
    meta: Json = template.get("metadata") or {}
    return meta


def _strings(meta: Json, kind: str) -> Mapping[str, str]:
    found: Mapping[str, str] = meta.get(kind) or _NOTHING
    return found


_STRINGS: Final = (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector"))
_LISTS: Final = (("spec", "tolerations"), ("spec", "schedulingGates"))
_PLACING: Final = ("nodeSelector", "tolerations", "schedulingGates")


def resume(replicated_job: ReplicatedJob, jobs: Iterable[ChildJob]) -> tuple[ResumeJob, ...]:
    """Return the writes that resume these suspended ``jobs`` of a replicated Job, in their order.

    Values of the JobSet's template override a Job's. Values that only the Job has stay: another controller may have set
    them. Node selectors, tolerations and gates that an earlier template has set do not: Kueue may have admitted the
    JobSet to other nodes since. A Job of which these are not kept, because it is too large, stays suspended.
    """
    made_of, ours = template_changes.made_of(replicated_job), replicated_job.pod_template
    placed_by = _placed_by(replicated_job)
    return tuple(_resumed(job, job.template, ours, made_of, placed_by) for job in jobs if job.template is not None)


def _resumed(job: ChildJob, theirs: Json, ours: Json, made_of: TemplateHash, placed_by: str | None) -> ResumeJob:
    merged: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    former = {"spec": theirs.get("former") or NO_JSON}
    for part, field in _STRINGS:
        had, was, has = (_part(each, part, field, {}) for each in (theirs, former, ours))
        kept = {name: value for name, value in had.items() if was.get(name) != value}
        found = {**kept, **has}
        if gone := dict.fromkeys(had.keys() - found.keys()):
            found |= gone  # null removes a value (RFC 7396)
        if found:
            merged[part][field] = found
    for part, field in _LISTS:
        had, was, has = (_part(each, part, field, ()) for each in (theirs, former, ours))
        union = _union((each for each in had if each in has or each not in was), has)
        if union or had:
            merged[part][field] = union
    noted: Json = template_changes.noted_by_resume(made_of, job)
    annotations = {**noted, naming.PLACED_BY: placed_by} if noted else noted
    return ResumeJob(job.name, job.uid, clear_start=job.started, template=merged, annotations=annotations)


def _placed_by(replicated_job: ReplicatedJob) -> str | None:
    """Return the annotation with the node selector, tolerations and gates of a template; None if there are none.

    Too many are not recorded, so that the next resume keeps all that the Job has.
    """
    pod = replicated_job.pod_template.get("spec") or NO_JSON
    placing = {field: pod[field] for field in _PLACING if pod.get(field)}
    text = json.dumps(placing, sort_keys=True)
    return text if placing and len(text) <= naming.MOST_PLACED_BY else None


def _part(template: Json, part: str, field: str, empty: Any) -> Any:
    return (template.get(part) or NO_JSON).get(field) or empty


def _union(old: Iterable[Json], new: Iterable[Json]) -> list[Json]:
    """Return the union, the old ones first, without duplicates."""
    found: list[Json] = []
    for each in (*old, *new):
        if each not in found:
            found.append(each)
    return found


def service(jobset: JobSet) -> dict[str, Any]:
    """Return the Service's body; its name is the subdomain. It is needed only with ``network.dns_hostnames``.

    Source: createHeadlessSvcIfNecessary. As there, an existing one is neither checked nor fixed. The label is
    kubemend's, for the Informer: a deleted Service is created again.
    """
    network = jobset.spec.network
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": network.subdomain,
            "namespace": jobset.namespace,
            "labels": {naming.JOBSET_NAME: jobset.name},
            "ownerReferences": [naming.controller_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {naming.JOBSET_NAME: jobset.name},
            "publishNotReadyAddresses": network.publish_not_ready,
        },
    }
