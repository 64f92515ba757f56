"""Rules about how pods find each other: the subdomain and the coordinator."""

from collections.abc import Iterator

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec import templates
from kubemend.controller.jobset.spec.model import Coordinator, JobSet, ReplicatedJob
from kubemend.controller.jobset.spec.validation import limits
from kubemend.controller.jobset.spec.validation.problem import Problem

_PATH = "spec.coordinator"


def problems(jobset: JobSet) -> Iterator[Problem]:
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
        yield Problem(f"{_PATH}.replicatedJob", message, "name one of spec.replicatedJobs")
    else:
        yield from _indexes(coordinator, job)
    if len(naming.coordinator(jobset) or "") > limits.LABEL_LENGTH:
        message = "the address of its pod does not fit in a label"
        yield Problem(_PATH, message, f"choose names that make at most {limits.LABEL_LENGTH} characters together")


def _indexes(coordinator: Coordinator, job: ReplicatedJob) -> Iterator[Problem]:
    if not 0 <= coordinator.job_index < job.replicas:
        message = f"{job.name} has no Job {coordinator.job_index}"
        yield Problem(f"{_PATH}.jobIndex", message, "name one from 0 to replicas - 1")
    if not templates.is_indexed(job.job_spec) or job.completions is None:
        message = f"the pods of {job.name} have no index"
        yield Problem(f"{_PATH}.replicatedJob", message, "set completionMode Indexed and completions there")
    elif not 0 <= coordinator.pod_index < job.completions:
        message = f"a Job of {job.name} has no pod {coordinator.pod_index}"
        yield Problem(f"{_PATH}.podIndex", message, "name one from 0 to completions - 1")
