"""Keep deleted Jobs until a scenario releases them, as slowly ending pods would.

An admission policy gives each new Job a finalizer, which only the scenario removes. So a step can check a JobSet whose
Jobs are being deleted, however fast the garbage collector is.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kubemend.common import aio
from kubemend.common.kube import client, paths
from tests.jobset.player import places

FINALIZER: Final = "example.com/not-gone-yet"

_NAME: Final = "jobs-are-kept.example.com"
_LOOK_AGAIN: Final = 0.1  # seconds
_EFFECT_SECONDS: Final = 60.0

_POLICY: Final[Mapping[str, Any]] = {
    "metadata": {"name": _NAME},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]}
            ]
        },
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f'[JSONPatch{{op: "add", path: "/metadata/finalizers", value: ["{FINALIZER}"]}}]'
                },
            }
        ],
    },
}


async def install(api: client.KubeClient) -> None:
    """Install the policy, and return when it is in effect. Raises KubeError, TimeoutError."""
    for resource, body in (
        ("mutatingadmissionpolicies", dict(_POLICY)),
        ("mutatingadmissionpolicybindings", {"metadata": {"name": _NAME}, "spec": {"policyName": _NAME}}),
    ):
        await api.create(paths.collection(resource, group="admissionregistration.k8s.io"), body)
    async with asyncio.timeout(_EFFECT_SECONDS):
        async for _ in aio.ticks(period=_LOOK_AGAIN):  # the API server reads its policies from time to time
            if FINALIZER in (await _tried(api))["metadata"].get("finalizers", ()):
                return


async def release(api: client.KubeClient, path: str, job: Mapping[str, Any]) -> None:
    """Release a Job that is being deleted; it is removed once its pods are."""
    left = [each for each in job["metadata"].get("finalizers") or () if each != FINALIZER]
    body = {"metadata": {"finalizers": left, "resourceVersion": job["metadata"]["resourceVersion"]}}
    await api.patch(path, body, content_type=client.Patch.MERGE)


async def _tried(api: client.KubeClient) -> dict[str, Any]:
    """Return the Job that a creation would give (dry run)."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "none", "image": "busybox:1"}]}
    body = {"metadata": {"name": "tried"}, "spec": {"template": {"spec": pod}}}
    return await api.create(f"{places.collection('jobs', 'default')}?dryRun=All", body)
