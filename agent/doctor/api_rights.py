"""What the agent's account may do in the API: each right that the agent uses, asked for by an access review."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent.doctor import kubernetes_api
from agent.doctor.checks import Check, Result
from common.kube import errors, paths

RIGHTS = "api-rights"
NODE = "api-rights-node"
GROUPS = "api-rights-groups"

_BIND = "bind the agent's ClusterRole, as it is now, to the service account that it runs as"
_REVIEWS = paths.collection("selfsubjectaccessreviews", group="authorization.k8s.io")
_GROUPS_API = "leaderworkerset.x-k8s.io"


class Api(Protocol):
    """The two calls that are needed (``common.kube.client.KubeClient``)."""

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...
    async def get(self, path: str) -> dict[str, Any]: ...


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
"""What agent.sources.pods, agent.sources.owners and agent.reporters do."""

FOR_NODE = (
    Right("get", "nodes"),
    Right("patch", "nodes", subresource="status"),
    Right("create", "events"),
    Right("get", "events"),
    Right("patch", "events"),
)
"""What agent.reporters.node_condition and agent.reporters.events do."""

FOR_GROUPS = Right("get", "leaderworkersets", group=_GROUPS_API)
"""What agent.sources.owners does for pods of a LeaderWorkerSet, and for no others."""


async def needed(api: Api) -> Sequence[Check]:
    """Say which of the rights that every agent needs are missing."""
    try:
        refused = await _refused(api, NEEDED)
    except errors.KubeError as error:
        return (kubernetes_api.not_asked(RIGHTS, error),)
    if not refused:
        return (Check(RIGHTS, Result.OK, f"allowed: {', '.join(map(str, NEEDED))}"),)
    what = f"not allowed: {', '.join(map(str, refused))}"
    return (Check(RIGHTS, Result.FAIL, what, _BIND),)


async def for_node(api: Api) -> Sequence[Check]:
    """Say whether the node's condition and events can be written."""
    try:
        refused = await _refused(api, FOR_NODE)
    except errors.KubeError as error:
        return (kubernetes_api.not_asked(NODE, error),)
    if not refused:
        return (Check(NODE, Result.OK, f"allowed: {', '.join(map(str, FOR_NODE))}"),)
    what = f"not allowed: {', '.join(map(str, refused))}; the node's condition or events are not told in full"
    return (Check(NODE, Result.WARN, what, _BIND),)


async def for_groups(api: Api) -> Sequence[Check]:
    """Say whether LeaderWorkerSets can be read, where the cluster has them."""
    try:
        refused = await _refused(api, [FOR_GROUPS])
        installed = not refused or await _has_groups(api)
    except errors.KubeError as error:
        return (kubernetes_api.not_asked(GROUPS, error),)
    if not installed:
        return (Check(GROUPS, Result.NOT_NEEDED, "the cluster has no LeaderWorkerSets"),)
    if not refused:
        return (Check(GROUPS, Result.OK, f"allowed: {FOR_GROUPS}"),)
    return (
        Check(
            GROUPS,
            Result.WARN,
            f"not allowed: {FOR_GROUPS}; pods of LeaderWorkerSets are not restarted",
            _BIND,
        ),
    )


async def _refused(api: Api, rights: Iterable[Right]) -> list[Right]:
    """Return the rights that this account does not have. Raises KubeError."""
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


async def _has_groups(api: Api) -> bool:
    try:
        await api.get(f"/apis/{_GROUPS_API}")
    except errors.NotFoundError:
        return False
    return True
