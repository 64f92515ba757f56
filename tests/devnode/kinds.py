"""Containers of several kinds, for a comparison of a successor with the old one."""

from collections.abc import Mapping
from typing import Any

SOME_CPU = {"limits": {"memory": "64Mi", "cpu": "1"}, "requests": {"memory": "32Mi", "cpu": "100m"}}
_ENVIRONMENT = [{"name": "URL", "value": "a=b&c=\td"}, {"name": "EMPTY", "value": ""}]
_VOLUMES = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/data/inner", "readOnly": True}]
TRAINER: dict[str, Any] = {
    "resources": SOME_CPU,
    "env": _ENVIRONMENT,
    "volumeMounts": _VOLUMES,
    "workingDir": "/var/run",
    "securityContext": {
        "runAsUser": 4711,
        "runAsGroup": 4712,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    },
}
"""Its pod has the volume ``data``."""
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "plain": {},
    "resources": {"resources": SOME_CPU},
    "environment": {"env": _ENVIRONMENT},
    "user": {"securityContext": {"runAsUser": 4711, "readOnlyRootFilesystem": True}},
    "capabilities": {"securityContext": {"capabilities": {"add": ["CHOWN"], "drop": ["KILL"]}}},
    "terminal": {"tty": True, "stdin": True, "stdinOnce": True},
}


def pod(main: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other fields of a pod that has a container of one of these kinds."""
    return {
        "containers": [main],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "securityContext": {"fsGroup": 99, "supplementalGroups": [100, 101]},
        "annotations": {"example.com/any": "value"},
    }
