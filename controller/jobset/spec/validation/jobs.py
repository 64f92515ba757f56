"""Rules about replicated Jobs: their number, names and order, what a restart in place requires, and the network."""

from collections.abc import Iterator

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec import fields, templates
from kubemend.controller.jobset.spec.model import Coordinator, JobSet, ReplicatedJob, Spec
from kubemend.controller.jobset.spec.validation import limits
from kubemend.controller.jobset.spec.validation.problem import Problem

_POD_SUFFIX = "-abcde"  # a pod's name ends with five random characters (pkg/controller/job, Indexed Jobs)
_COORDINATOR = "spec.coordinator"


def sizes(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of too many items."""
    path = "spec.replicatedJobs"
    if len(spec.replicated_jobs) > limits.REPLICATED_JOBS:
        yield Problem(path, "there are too many replicated Jobs", f"keep to {limits.REPLICATED_JOBS} replicated Jobs")
    if naming.replicas(spec.replicated_jobs) > limits.JOBS:
        yield Problem(path, "the replicated Jobs have too many Jobs together", f"keep to {limits.JOBS} Jobs")


def problems(jobset: JobSet) -> Iterator[Problem]:
    """Yield the problems of the replicated Jobs."""
    spec = jobset.spec
    earlier: set[str] = set()
    for index, job in enumerate(spec.replicated_jobs):
        path = f"spec.replicatedJobs[{index}]"
        if job.name in earlier:
            yield Problem(f"{path}.name", f"there is a replicated Job {job.name} already", "give each its own name")
        yield from _names(jobset.name, job, path)
        yield from _pods(job, path)
        yield from _dependencies(job, path, earlier=frozenset(earlier))
        if spec.is_in_place:
            yield from _in_place(job, f"{path}.template.spec")
        earlier.add(job.name)


def _names(jobset: str, job: ReplicatedJob, path: str) -> Iterator[Problem]:
    if not limits.DNS_1035.fullmatch(job.group):
        yield Problem(f"{path}.groupName", f"{job.group!r} is not a valid DNS label", limits.DNS_1035_HINT)
    longest = naming.job_name(jobset, job.name, max(job.replicas, 1) - 1)
    if not limits.DNS_1035.fullmatch(longest):
        yield Problem(f"{path}.name", f"a Job would have the name {longest!r}", limits.DNS_1035_HINT)
    elif templates.is_indexed(job.job_spec) and job.completions is not None:
        pod = f"{longest}-{max(job.completions, 1) - 1}{_POD_SUFFIX}"
        if not limits.DNS_1035.fullmatch(pod):
            yield Problem(f"{path}.name", f"a pod would have the name {pod!r}", limits.DNS_1035_HINT)


def _pods(job: ReplicatedJob, path: str) -> Iterator[Problem]:
    for name, number in (
        ("replicas", job.replicas),
        ("template.spec.parallelism", job.parallelism),
        ("template.spec.completions", job.completions),
    ):
        if number is not None and number < 0:
            yield Problem(f"{path}.{name}", "cannot be negative", "write 0 or more")
    if job.replicas * job.parallelism > fields.INT32_MAX:
        hint = f"keep replicas times parallelism to {fields.INT32_MAX}"
        yield Problem(f"{path}.replicas", "the Jobs have too many pods together", hint)


def _dependencies(job: ReplicatedJob, path: str, *, earlier: frozenset[str]) -> Iterator[Problem]:
    """Yield invalid dependencies. Upstream lets a replicated Job depend on itself; then it waits indefinitely."""
    for index, dependency in enumerate(job.depends_on):
        if dependency.on not in earlier:
            message = f"{dependency.on} is not a replicated Job listed before {job.name}"
            yield Problem(f"{path}.dependsOn[{index}].name", message, "name one that is earlier in the list")


def _in_place(job: ReplicatedJob, path: str) -> Iterator[Problem]:
    """Yield what restarts in place rule out: they must not fail the Job, nor may a replacement meet the old pod."""
    if job.job_spec.get("backoffLimit") != fields.INT32_MAX:
        message = "restarts in place would fail the Job"
        yield Problem(f"{path}.backoffLimit", message, f"set it to {fields.INT32_MAX} for InPlaceRestart")
    if job.job_spec.get("podReplacementPolicy") != "Failed":
        message = "a pod could be replaced while it still runs"
        yield Problem(f"{path}.podReplacementPolicy", message, "set it to Failed for InPlaceRestart")
    if job.completions is None or job.job_spec.get("parallelism") != job.completions:
        message = "the workers of a gang must all run at once"
        yield Problem(f"{path}.completions", message, "set it and parallelism to the same number for InPlaceRestart")


def network_problems(jobset: JobSet) -> Iterator[Problem]:
    """Yield the problems of network and coordinator."""
    subdomain = jobset.spec.network.subdomain
    if subdomain != jobset.name and not limits.DNS_1035.fullmatch(subdomain):
        yield Problem("spec.network.subdomain", f"{subdomain!r} is not a valid name of a Service", limits.DNS_1035_HINT)
    coordinator = jobset.spec.coordinator
    if coordinator is None:
        return
    job = next((each for each in jobset.spec.replicated_jobs if each.name == coordinator.replicated_job), None)
    if job is None:
        message = f"there is no replicated Job {coordinator.replicated_job!r}"
        yield Problem(f"{_COORDINATOR}.replicatedJob", message, "name one of spec.replicatedJobs")
    else:
        yield from _coordinator_indexes(coordinator, job)
    if len(naming.coordinator(jobset) or "") > limits.LABEL_LENGTH:
        message = "the address of its pod does not fit in a label"
        hint = f"choose names that make at most {limits.LABEL_LENGTH} characters together"
        yield Problem(_COORDINATOR, message, hint)


def _coordinator_indexes(coordinator: Coordinator, job: ReplicatedJob) -> Iterator[Problem]:
    if not 0 <= coordinator.job_index < job.replicas:
        message = f"{job.name} has no Job {coordinator.job_index}"
        yield Problem(f"{_COORDINATOR}.jobIndex", message, "name one from 0 to replicas - 1")
    if not templates.is_indexed(job.job_spec) or job.completions is None:
        message = f"the pods of {job.name} have no index"
        yield Problem(f"{_COORDINATOR}.replicatedJob", message, "set completionMode Indexed and completions there")
    elif not 0 <= coordinator.pod_index < job.completions:
        message = f"a Job of {job.name} has no pod {coordinator.pod_index}"
        yield Problem(f"{_COORDINATOR}.podIndex", message, "name one from 0 to completions - 1")
