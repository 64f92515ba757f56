"""Check the API server, this node's object, and its kubelet: version-dependent behaviour, pod-resources socket."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from kubemend.agent.clients.podresources.client import PodResourcesClient
from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import grpcio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths
from kubemend.common.pb.podresources.v1 import api_pb2, api_pb2_grpc

API = "kubernetes-api"
NAME, KUBELET, RULES = NODE = ("node", "kubelet", "restart-rules")

RULES_FEATURE = "RestartAllContainersOnContainerExits"
"""The name by which a kubelet with KEP-5532 declares it
(component-helpers/nodedeclaredfeatures/features/restartallcontainers).
"""

NO_FREEZE_SINCE = (1, 35)
"""Before 1.35, kubelet drops every status update of a pod in which a container that had ended permanently runs again.

From then on a pod of which all containers could restart is exempt: pkg/kubelet/status/status_manager.go,
``AllContainersCouldRestart`` in pkg/api/v1/pod/util.go.
"""

_VERSION = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)")


async def server(api: client.ObjectReader) -> Sequence[Check]:
    """Check whether the API server answers, and its version."""
    try:
        answer = await api.get("/version")
    except errors.KubeError as error:
        return (Check(API, Result.FAIL, error.what, error.hint),)
    return (Check(API, Result.OK, f"the API server answers, version {answer.get('gitVersion', 'unknown')}"),)


async def node(api: client.ObjectReader, *, name: str) -> Sequence[Check]:
    """Check whether the node exists, and whether its kubelet's version and features affect restarts."""
    try:
        found = await api.get(f"{paths.NODES}/{name}")
    except errors.NotFoundError:
        hint = "set --node-name, in a pod by NODE_NAME from the field spec.nodeName"
        return Check(NAME, Result.FAIL, f"the cluster has no node named {name}", hint), *_unread()
    except errors.KubeError as error:
        return not_asked(NAME, error), *_unread()
    status = found.get("status") or {}
    return (
        Check(NAME, Result.OK, f"the cluster knows this node as {name}"),
        kubelet_check(str((status.get("nodeInfo") or {}).get("kubeletVersion", ""))),
        rules_check(status),
    )


def kubelet_check(version: str) -> Check:
    """Return the check for how this kubelet version handles a pod in which an init container runs again."""
    match = _VERSION.match(version)
    if match is None:
        what = f"kubelet's version {version!r} cannot be parsed"
        return Check(KUBELET, Result.UNKNOWN, what, "see kubeletVersion in the node's status")
    if (int(match["major"]), int(match["minor"])) >= NO_FREEZE_SINCE:
        return Check(KUBELET, Result.OK, f"kubelet {version}")
    return Check(
        KUBELET,
        Result.WARN,
        f"kubelet {version} freezes the status of an OnFailure or Never pod while an init container that had "
        "completed runs again (strategies rerun and reset)",
        "use Kubernetes 1.35 or newer, or the strategy swap, which runs no init container",
    )


def rules_check(status: Mapping[str, Any]) -> Check:
    """Return the check for whether kubelet restarts whole pods by restart rules (KEP-5532), from a node's status."""
    if RULES_FEATURE in (status.get("declaredFeatures") or ()):
        return Check(RULES, Result.OK, "kubelet has RestartAllContainers: the strategy rules can be used")
    what = "kubelet does not declare RestartAllContainers: the strategy rules is not available, the others are"
    return Check(RULES, Result.NOT_NEEDED, what)


def not_asked(name: str, error: errors.KubeError) -> Check:
    """Return an inconclusive check; a cause that the server's own check reports is not repeated."""
    if isinstance(error, errors.ApiUnavailableError | errors.UnauthorizedError):
        return Check(name, Result.UNKNOWN, "the API server could not be queried", f"see {API}")
    return Check(name, Result.UNKNOWN, error.what, error.hint or f"see {API}")


def _unread() -> Sequence[Check]:
    what, hint = "the node's status could not be read", f"see {NAME}"
    return tuple(Check(name, Result.UNKNOWN, what, hint) for name in (KUBELET, RULES))


POD_RESOURCES = "pod-resources"

_NEVER = 3600.0  # seconds; the check has a timeout of its own


async def pod_resources(socket: str) -> Sequence[Check]:
    """Check whether kubelet lists the holders of devices."""
    status = ComponentStatus(ComponentState.STARTING)

    def note(reported: ComponentStatus) -> None:
        nonlocal status
        status = reported

    async with PodResourcesClient(socket, report=note, deadline=_NEVER) as client:
        held = await client.list()
    if not held.known:
        return (Check(POD_RESOURCES, Result.FAIL, status.message, status.hint),)
    how = "one pod at a time" if await _has_get(socket) else "all pods at a time (it has no Get; 1.34 and later do)"
    return (
        Check(
            POD_RESOURCES,
            Result.OK,
            f"kubelet lists the holders of devices, {how}; {len(held.items)} containers hold devices",
        ),
    )


async def _has_get(socket: str) -> bool:
    """Return whether kubelet supports Get, by asking for a nonexistent pod: only with Get the error is "not found"."""
    async with grpcio.unix_channel(socket) as channel:
        request = api_pb2.GetPodResourcesRequest(pod_name="no.such.pod", pod_namespace="kubemend-doctor")
        try:
            await api_pb2_grpc.PodResourcesListerStub(channel).Get(request, timeout=_NEVER)
        except grpc.aio.AioRpcError as error:
            return (error.details() or "").endswith("not found")
    return True
