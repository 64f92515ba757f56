"""JobSets as users write them, for tests of reading, refusing and accepting them."""

import copy
import itertools
from collections.abc import Callable
from typing import Any, Final

from kubemend.controller.jobset.spec import model

Json = dict[str, Any]

INT32_MAX: Final = 2**31 - 1
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz" * 10
IN_ORDER: Final = {"startupPolicyOrder": "InOrder"}


def template(*, pod: Json | None = None, **spec: Any) -> Json:
    """Return a JobTemplateSpec; ``pod`` extends the pod's spec."""
    containers = [{"name": "main", "image": "trainer"}]
    return {"spec": {"template": {"spec": {"containers": containers, **(pod or {})}}, **spec}}


def replicated(name: str = "workers", *, pod: Json | None = None, spec: Json | None = None, **more: Any) -> Json:
    """Return a replicated Job."""
    return {"name": name, "template": template(pod=pod, **(spec or {})), **more}


def jobset(*jobs: Json, name: str = "train", managed_by: str | None = model.MANAGED_BY, **spec: Any) -> Json:
    """Return a JobSet as users write it, by default with one replicated Job."""
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": name},
        "spec": {
            **({"managedBy": managed_by} if managed_by else {}),
            "replicatedJobs": list(jobs) or [replicated()],
            **spec,
        },
    }


def there(obj: Json) -> Json:
    """Return a JobSet with the fields that the API server sets."""
    given = {"namespace": "here", "uid": "an-uid", "creationTimestamp": "2026-01-31T08:00:00Z"}
    return {**obj, "metadata": {**obj["metadata"], **given}}


def changed(obj: Json, change: Callable[[Json], object]) -> Json:
    """Return a copy after ``change`` of its spec."""
    copied = copy.deepcopy(obj)
    change(copied["spec"])
    return copied


def failing(*rules: Json, jobs: tuple[Json, ...] = (), **policy: Any) -> Json:
    """Return a JobSet with a failure policy."""
    return jobset(*jobs, failurePolicy={"rules": list(rules), **policy})


def in_place(**spec: Any) -> Json:
    """Return a JobSet that is restarted in place."""
    asked = {"backoffLimit": INT32_MAX, "podReplacementPolicy": "Failed", "completions": 2, "parallelism": 2}
    wanted = {key: value for key, value in {**asked, **spec}.items() if value is not None}
    return jobset(replicated(spec=wanted), failurePolicy={"maxRestarts": 3, "restartStrategy": "InPlaceRestart"})


def coordinated(name: str = "train", *, spec: Json | None = None, pod: Json | None = None) -> Json:
    """Return a JobSet of two Jobs of two pods, with a coordinator: by default the first pod."""
    wanted = {"completions": 2, "parallelism": 2} if spec is None else spec
    coordinator = {"replicatedJob": "workers", **(pod or {})}
    return jobset(replicated(replicas=2, spec=wanted), name=name, coordinator=coordinator)


def claiming(*names: str, mounts: tuple[str, ...] | None = None, volumes: tuple[str, ...] = (), **meta: Any) -> Json:
    """Return a JobSet with claims of these names, which its container mounts unless ``mounts`` differs."""
    asked = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    mounted = dict.fromkeys(names if mounts is None else mounts)
    container = {
        "name": "main",
        "image": "trainer",
        "volumeMounts": [{"name": each, "mountPath": f"/data/{index}"} for index, each in enumerate(mounted)],
    }
    pod = {"containers": [container], "volumes": [{"name": each, "emptyDir": {}} for each in volumes]}
    claims = [{"metadata": {"name": each, **meta}, "spec": asked} for each in names]
    return jobset(replicated(pod=pod), volumeClaimPolicies=[{"templates": claims}])


def depending(*jobs: tuple[str, str | None]) -> Json:
    return jobset(
        *(
            replicated(name, dependsOn=[{"name": on, "status": "Ready"}]) if on else replicated(name)
            for name, on in jobs
        )
    )


def claims_apart(*counts: int) -> Json:
    """Return a JobSet with this many claims in each of its policies."""
    whole = claiming(*(f"c{index}" for index in range(sum(counts))))
    templates = iter(whole["spec"]["volumeClaimPolicies"][0]["templates"])
    policies = [{"templates": list(itertools.islice(templates, count))} for count in counts]
    return changed(whole, lambda spec: spec.update(volumeClaimPolicies=policies))
