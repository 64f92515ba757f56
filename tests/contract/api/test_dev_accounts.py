"""Agents and controllers of a dev cluster have their own accounts there, with the rights of the manifests."""

from pathlib import Path

import pytest

from hack.devnode import accounts
from hack.devnode.controllers import Controllers
from kubemend.common.kube import client, errors, paths
from tests import eventually
from tests.contract.api import objects
from tests.contract.api.test_jobset_controller import controllers
from tests.control_plane import DEADLINES, ControlPlane

__all__ = ["controllers"]

_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_PLACE = "place"  # the name of the node
_NODE_NAME = "authentication.kubernetes.io/node-name"


@pytest.mark.parametrize(
    ("name", "account", "nodes"),
    [(_PLACE, accounts.AGENT, [_PLACE]), (accounts.CONTROLLER, accounts.CONTROLLER, None)],
)
async def test_account_is_the_manifests_and_not_the_administrator(
    controllers: Controllers, name: str, account: str, nodes: list[str] | None
) -> None:
    await assert_has_account(controllers.kubeconfig(name), account=account, nodes=nodes)


async def test_agent_without_a_hub_is_the_manifests_account_on_its_node(
    control_plane: ControlPlane, api: client.KubeClient, node: str, tmp_path: Path
) -> None:
    await api.create(paths.NODES, {"metadata": {"name": node}})
    path = await accounts.agent_kubeconfig(tmp_path / "agent", node=node, administrator=control_plane.kubeconfig)
    await assert_has_account(path, account=accounts.AGENT, nodes=[node])


async def assert_has_account(kubeconfig: Path, *, account: str, nodes: list[str] | None) -> None:
    """Check its name and its rights, which the API server notices a moment after it has created them."""

    async def may_list() -> bool:
        try:
            await api.list(paths.PODS)
        except errors.ForbiddenError:
            return False
        return True

    async with client.connect(kubeconfig=kubeconfig, deadlines=DEADLINES) as api:
        me = (await api.create(_REVIEWS, {}))["status"]["userInfo"]
        assert me["username"] == f"system:serviceaccount:{accounts.NAMESPACE}:{account}"
        assert me["extra"].get(_NODE_NAME) == nodes
        await eventually.true(may_list)
        with pytest.raises(errors.ForbiddenError):
            await api.create(objects.pods("default"), objects.pod("x"))


async def test_policies_limit_an_agent_to_its_node(controllers: Controllers, api: client.KubeClient, node: str) -> None:
    """The API server needs a moment to notice a policy: until then RBAC alone allows the write."""
    await api.create(paths.NODES, {"metadata": {"name": node}})
    patch = {"status": {"conditions": [{"type": "kubemend.io/DevicesHealthy", "status": "True"}]}}

    async def is_refused() -> bool:
        try:
            await agent.patch_status(f"{paths.NODES}/{node}", patch)
        except errors.ForbiddenError as error:
            return "may write only about that node" in str(error)
        return False

    async with client.connect(kubeconfig=controllers.kubeconfig(_PLACE), deadlines=DEADLINES) as agent:
        await eventually.true(is_refused)
