"""JobSets as users write them, for tests of their children."""

from typing import Any

from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import JobSet

Json = dict[str, Any]


def replicated(name: str = "w", **fields: Any) -> Json:
    """Return a replicated Job; ``template``, ``job`` and ``pods`` are merged into its template, Job spec and pods."""
    template, job, pods = (fields.pop(part, {}) for part in ("template", "job", "pods"))
    meta = fields.pop("pod_metadata", None)
    pod_template = {"spec": {"containers": [{"name": "main", "image": "train:1"}], **pods}}
    if meta is not None:
        pod_template["metadata"] = meta
    return {"name": name, "template": {"spec": {"template": pod_template, **job}, **template}, **fields}


def jobset(*replicated_jobs: Json, annotations: Json | None = None, generation: int = 1, **spec: Any) -> JobSet:
    """Return a JobSet as the controller has it: ``ml/train``."""
    meta: Json = {"name": "train", "namespace": "ml", "uid": "0b7e55ab-uid", "generation": generation}
    if annotations is not None:
        meta["annotations"] = annotations
    jobs = list(replicated_jobs) or [replicated()]
    return reading.jobset({"metadata": meta, "spec": {"replicatedJobs": jobs, **spec}})
