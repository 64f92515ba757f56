"""Names of the Restart resource (daemonset/crds/restarts.yaml), and of kubemend's labels and annotations on it."""

from typing import Final
from urllib.parse import quote

from kubemend.common.kube import paths
from kubemend.controller.model import restart_resource

GROUP: Final = restart_resource.GROUP
VERSION: Final = restart_resource.VERSION
API_VERSION: Final = restart_resource.API_VERSION
KIND: Final = restart_resource.KIND
PLURAL: Final = restart_resource.PLURAL

GANG_KIND: Final = "kubemend.io/gang-kind"
GANG_NAME: Final = "kubemend.io/gang-name"
"""Labels: a round's gang, so that ``kubectl get restarts -l kubemend.io/gang-name=NAME`` is its history."""

ATTEMPT: Final = "kubemend.io/attempt"
CAUSE: Final = "kubemend.io/cause"
DECISION: Final = "kubemend.io/decision"
"""Annotations that ``kubectl get restarts`` shows."""
EPOCH: Final = "kubemend.io/epoch"
"""Annotation: the epoch of the leader that owns the round; writes of other leaders are rejected."""
GANG_UID: Final = "kubemend.io/gang-uid"
"""Annotation: the UID of the object that the gang is named after.

Rounds of a previous one of that name do not count.
"""
ROUND: Final = "kubemend.io/round"
"""Annotation: the status with which the round began, as JSON. (A create request cannot set a status.)"""

WHOLE: Final = f"/apis/{API_VERSION}/{PLURAL}"
"""The path of all Restarts."""


def collection(namespace: str) -> str:
    """Return the path of a namespace's Restarts."""
    return paths.collection(PLURAL, namespace=namespace, group=GROUP, version=VERSION)


def path(namespace: str, name: str) -> str:
    """Return the path of one Restart."""
    return f"{collection(namespace)}/{quote(name, safe='')}"
