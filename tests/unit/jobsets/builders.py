"""JobSets as users write them."""

import time
from collections.abc import Mapping
from typing import Any

from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.spec import model


def replicated(name: str = "w", replicas: int = 2, **fields: Any) -> Json:
    """Return a replicated Job of single pods; ``job`` is merged into its Job's spec, ``pod`` into its pods'."""
    job, pod = fields.pop("job", {}), fields.pop("pod", {})
    spec = {"restartPolicy": "OnFailure", "containers": [{"name": "main", "image": "train:1"}], **pod}
    whole = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 2**31 - 1,
        "podReplacementPolicy": "Failed",
        "template": {"spec": spec},
        **job,
    }
    return {"name": name, "replicas": replicas, "template": {"spec": whole}, **fields}


def jobset(
    name: str = "train",
    *jobs: Json,
    managed_by: str | None = model.MANAGED_BY,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a JobSet as users write it."""
    metadata: Json = {"name": name, **({"annotations": dict(annotations)} if annotations else {})}
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": metadata,
        "spec": {
            "replicatedJobs": list(jobs) or [replicated()],
            **({"managedBy": managed_by} if managed_by is not None else {}),
            **spec,
        },
    }


def with_claim() -> Json:
    """Return a JobSet with one of each object that is created before its Jobs."""
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": "data"}, "spec": storage}]
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod = {"containers": [{"name": "main", "image": "train:1", "volumeMounts": mounts}]}
    return jobset("train", replicated(pod=pod), volumeClaimPolicies=[{"templates": templates}])


def now(*, ago: float = 0.0) -> str:
    """Return the time as the API has it, or the time some seconds ago."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago))
