"""Build the paths that scenarios read and write. Pure."""

from typing import Final

from kubemend.common.kube import paths
from kubemend.controller.restarts import names

NAMESPACES: Final = paths.collection("namespaces")
DEFINITIONS: Final = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")

_GROUPS: Final = {
    "jobsets": ("jobset.x-k8s.io", "v1alpha2"),
    "jobs": ("batch", "v1"),
    "pods": ("", "v1"),
    "services": ("", "v1"),
    "persistentvolumeclaims": ("", "v1"),
    "events": ("events.k8s.io", "v1"),
    "restarts": (names.GROUP, names.VERSION),
}
_OF_KINDS: Final = {
    "Job": "jobs",
    "JobSet": "jobsets",
    "Service": "services",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}


def collection(resource: str, namespace: str) -> str:
    """Return the path of a namespace's objects of a resource."""
    group, version = _GROUPS[resource]
    return paths.collection(resource, namespace=namespace, group=group, version=version)


def one(resource: str, namespace: str, name: str) -> str:
    """Return the path of one object."""
    return f"{collection(resource, namespace)}/{name}"


def of_kind(kind: str, namespace: str) -> str:
    """Return the path of a namespace's objects of a kind. Raises KeyError for one that scenarios do not support."""
    return collection(_OF_KINDS[kind], namespace)
