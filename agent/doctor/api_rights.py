"""Check the agent's permissions in the API: each one it uses, by an access review."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubemend.agent.doctor import kubernetes_api
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.restart import owners
from kubemend.common.kube import client, errors, paths

RIGHTS = "api-rights"
NODE = "api-rights-node"
GROUPS = "api-rights-groups"
TRAINING = "api-rights-training"

_BIND = "bind the agent's ClusterRole, as it is now, to the service account that it runs as"
_REVIEWS = paths.collection("selfsubjectaccessreviews", group="authorization.k8s.io")
_GROUPS_API = "leaderworkerset.x-k8s.io"


class Api(client.ObjectReader, Protocol):
    """The two API calls needed here (``common.kube.client.KubeClient``)."""

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource, in all namespaces."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        target = paths.Target(verb=self.verb, resource=self.resource, group=self.group, subresource=self.subresource)
        return str(target)


NEEDED = (
    Right("get", "pods"),
    Right("list", "pods"),
    Right("watch", "pods"),
    Right("patch", "pods", subresource="status"),
    Right("get", "jobs", group="batch"),
)
"""Permissions used by agent.sources.pods, agent.sources.owners and agent.reporters."""

FOR_NODE = (
    Right("get", "nodes"),
    Right("list", "nodes"),
    Right("watch", "nodes"),
    Right("patch", "nodes", subresource="status"),
    Right("create", "events"),
    Right("get", "events"),
    Right("list", "events"),
    Right("patch", "events"),
)
"""Permissions used by agent.sources.{nodes,pod_ends}, agent.reporters.node_condition and agent.reporters.events."""

FOR_GROUPS = Right("get", "leaderworkersets", group=_GROUPS_API)
"""Permission used by agent.sources.owners for pods of a LeaderWorkerSet only."""

FOR_TRAINING = tuple(Right("get", resource, group=owners.KUBEFLOW) for resource in owners.TRAINING.values())
"""Permissions used by agent.sources.owners for pods of Kubeflow's jobs only."""


async def needed(api: Api) -> Sequence[Check]:
    """Check the permissions that every agent needs."""
    try:
        refused = await _refused(api, NEEDED)
    except errors.KubeError as error:
        return (kubernetes_api.not_asked(RIGHTS, error),)
    if not refused:
        return (Check(RIGHTS, Result.OK, f"allowed: {', '.join(map(str, NEEDED))}"),)
    what = f"not allowed: {', '.join(map(str, refused))}"
    return (Check(RIGHTS, Result.FAIL, what, _BIND),)


async def for_node(api: Api) -> Sequence[Check]:
    """Check the permissions to follow the node, and to write its condition and Events."""
    try:
        refused = await _refused(api, FOR_NODE)
    except errors.KubeError as error:
        return (kubernetes_api.not_asked(NODE, error),)
    if not refused:
        return (Check(NODE, Result.OK, f"allowed: {', '.join(map(str, FOR_NODE))}"),)
    what = (
        f"not allowed: {', '.join(map(str, refused))}; the node's condition or Events are published incompletely, or "
        "its shutdown is noticed late"
    )
    return (Check(NODE, Result.WARN, what, _BIND),)


async def for_groups(api: Api) -> Sequence[Check]:
    """Check the permission to read LeaderWorkerSets, if the cluster has them."""
    return (await _optional(api, GROUPS, [FOR_GROUPS], whose="LeaderWorkerSets"),)


async def for_training(api: Api) -> Sequence[Check]:
    """Check the permission to read Kubeflow's jobs, if the cluster has them."""
    return (await _optional(api, TRAINING, FOR_TRAINING, whose="Kubeflow's training jobs"),)


async def _optional(api: Api, name: str, rights: Sequence[Right], *, whose: str) -> Check:
    """Check permissions on an API that only some clusters have; ``rights`` belong to one API group."""
    try:
        refused = await _refused(api, rights)
        installed = not refused or await _has(api, rights[0].group)
    except errors.KubeError as error:
        return kubernetes_api.not_asked(name, error)
    if not installed:
        return Check(name, Result.NOT_NEEDED, f"the cluster has no {whose}")
    if not refused:
        return Check(name, Result.OK, f"allowed: {', '.join(map(str, rights))}")
    what = f"not allowed: {', '.join(map(str, refused))}; pods of {whose} are not restarted"
    return Check(name, Result.WARN, what, _BIND)


async def _refused(api: Api, rights: Iterable[Right]) -> list[Right]:
    """Return the missing permissions. Raises KubeError."""
    asked = tuple(rights)
    allowed = await asyncio.gather(*(_allowed(api, right) for right in asked))
    return [right for right, yes in zip(asked, allowed, strict=True) if not yes]


async def _allowed(api: Api, right: Right) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
    }
    review = await api.create(
        _REVIEWS,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool((review.get("status") or {}).get("allowed"))


async def _has(api: Api, group: str) -> bool:
    try:
        await api.get(f"/apis/{group}")
    except errors.NotFoundError:
        return False
    return True
