"""Let kubemend's processes on a dev cluster be their own service accounts, under the published manifests.

Agents and controller have the manifests' rights, and the manifests' admission policies hold for them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.devnode import kubeconfig as kubeconfigs
from hack.devnode import manifests, patience
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

NAMESPACE = "kubemend"
AGENT, CONTROLLER = "kubemend-agent", "kubemend-controller"
_ACCOUNTS = paths.collection("serviceaccounts", namespace=NAMESPACE)
_TOKEN_SECONDS = 24 * 3600

Json = dict[str, Any]


async def agent_kubeconfig(path: Path, *, node: str, administrator: Path) -> Path:
    """Write a kubeconfig with which an agent without a hub is its own account on that node, and return its path.

    The token names the node because it is bound to it (KEP-4193); with a hub it is bound to the agent's pod instead.
    ``administrator`` is the cluster's kubeconfig.
    """
    async with kube.connect(kubeconfig=administrator, deadlines=patience.API) as api:
        await manifests.apply(api)
        bound_to = await api.get(f"{paths.NODES}/{node}")
        return await write_kubeconfig(path, api=api, administrator=administrator, account=AGENT, bound_to=bound_to)


async def write_kubeconfig(
    path: Path, *, api: kube.KubeClient, administrator: Path, account: str, bound_to: Json | None = None
) -> Path:
    """Write a kubeconfig with a token of that account, and return its path."""
    token = await request_token(api, account, bound_to=bound_to)
    return kubeconfigs.write_for_same_cluster(path, other=administrator, token=token)


async def request_token(
    api: kube.KubeClient, account: str, *, bound_to: Json | None = None, audiences: Sequence[str] = ()
) -> str:
    """Request a token as kubelet does for a projected volume (TokenRequest).

    ``bound_to`` is the pod or node that it ends with and whose node it names (KEP-4193). Without ``audiences`` it is
    for the API server.
    """
    spec: Json = {"audiences": list(audiences), "expirationSeconds": _TOKEN_SECONDS}
    if bound_to is not None:
        metadata = bound_to["metadata"]
        spec["boundObjectRef"] = {
            "apiVersion": "v1",
            "kind": bound_to["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
    return str((await api.create(f"{_ACCOUNTS}/{account}/token", {"spec": spec}))["status"]["token"])
