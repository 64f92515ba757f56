"""Rules about the claims that the pods of a JobSet share."""

import collections
from collections.abc import Iterable, Iterator

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec.model import JobSet, Json, ReplicatedJob, Spec
from kubemend.controller.jobset.spec.validation import limits
from kubemend.controller.jobset.spec.validation.problem import Problem

_PATH = "spec.volumeClaimPolicies"


def sizes(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of too many items."""
    if sum(len(each.templates) for each in spec.claim_policies) > limits.CLAIMS:
        yield Problem(_PATH, "the JobSet has too many claims", f"keep to {limits.CLAIMS} templates")


def problems(jobset: JobSet) -> Iterator[Problem]:
    """Yield the problems of the claim policies."""
    policies = jobset.spec.claim_policies
    called = collections.Counter(_name(template) for each in policies for template in each.templates)
    mounted = frozenset(_mounted(jobset.spec.replicated_jobs))
    for policy_index, policy in enumerate(policies):
        for index, template in enumerate(policy.templates):
            path, name = f"{_PATH}[{policy_index}].templates[{index}].metadata", _name(template)
            if (template.get("metadata") or {}).get("namespace"):
                message = "claims are made in the JobSet's namespace"
                yield Problem(f"{path}.namespace", message, "leave it out")
            yield from _names(name, f"{path}.name", jobset=jobset.name, times=called[name])
            if name not in mounted:
                message = f"no container mounts a volume {name!r}"
                yield Problem(f"{path}.name", message, "name the claim in volumeMounts of a container, or leave it out")
    yield from _volumes(jobset.spec.replicated_jobs, frozenset(called))


def _names(name: str, path: str, *, jobset: str, times: int) -> Iterator[Problem]:
    if not limits.DNS_1123.fullmatch(name):
        yield Problem(path, f"{name!r} is not a valid name of a claim", "use lower-case letters, digits, '-' and '.'")
    if len(naming.claim_name(jobset, name)) > limits.LABEL_LENGTH:
        message = "the names of the claim and the JobSet are too long together"
        yield Problem(path, message, f"choose names that make at most {limits.LABEL_LENGTH} characters together")
    if times > 1:
        yield Problem(path, f"several claims have the name {name!r}", "give each its own name")


def _volumes(jobs: Iterable[ReplicatedJob], claims: frozenset[str]) -> Iterator[Problem]:
    """Yield the volumes of templates that have the same name as a claim's volume in the same pod."""
    for job_index, job in enumerate(jobs):
        path = f"spec.replicatedJobs[{job_index}].template.spec.template.spec.volumes"
        for index, volume in enumerate(_pod(job).get("volumes") or ()):
            if volume.get("name") in claims:
                message = f"a claim has the same name {volume['name']!r}"
                yield Problem(f"{path}[{index}].name", message, "rename the one or the other")


def _mounted(jobs: Iterable[ReplicatedJob]) -> Iterator[str]:
    for job in jobs:
        for key in ("initContainers", "containers"):
            for container in _pod(job).get(key) or ():
                yield from (str(mount.get("name")) for mount in container.get("volumeMounts") or ())


def _pod(job: ReplicatedJob) -> Json:
    pod: Json = job.pod_template.get("spec") or {}
    return pod


def _name(template: Json) -> str:
    return str((template.get("metadata") or {}).get("name") or "")
