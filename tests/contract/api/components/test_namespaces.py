"""The component restart-namespaces: restarts in place only where the cluster operator allows them."""

from typing import Any

import pytest

from kubemend.common.kube import client, errors, paths
from kubemend.controller.restarts import names
from tests import eventually
from tests.contract.api import installation, objects, restarts
from tests.contract.api.components.conftest import refuses
from tests.contract.api.installation import Cluster

OPTED_IN: dict[str, Any] = {"annotations": {"kubemend.io/restart": "InPlace"}}
REFUSED = "may not have restarts in place: the cluster operator allows it with the label kubemend.io/restart=allowed"


@pytest.fixture
async def forbidden(api: client.KubeClient) -> str:
    return await namespace(api)


@pytest.fixture
async def allowed(api: client.KubeClient) -> str:
    return await namespace(api, labels={"kubemend.io/restart": "allowed"})


async def namespace(api: client.KubeClient, **metadata: Any) -> str:
    made = await api.create(paths.collection("namespaces"), {"metadata": {"generateName": "test-", **metadata}})
    return str(made["metadata"]["name"])


async def test_pods_opt_in_where_it_is_allowed(api: client.KubeClient, allowed: str) -> None:
    await api.create(objects.pods(allowed), objects.pod("a", **OPTED_IN))
    await api.create(objects.pods(allowed), objects.pod("b"))
    await api.patch(paths.pod(allowed, "b"), {"metadata": OPTED_IN})


async def test_pods_do_not_opt_in_elsewhere(api: client.KubeClient, forbidden: str) -> None:
    with pytest.raises(errors.ForbiddenError, match=f"namespace {forbidden} {REFUSED}"):
        await api.create(objects.pods(forbidden), objects.pod("a", **OPTED_IN))
    await api.create(objects.pods(forbidden), objects.pod("b"))
    with pytest.raises(errors.ForbiddenError, match=f"namespace {forbidden} {REFUSED}"):
        await api.patch(paths.pod(forbidden, "b"), {"metadata": OPTED_IN})


async def test_a_pod_that_had_opted_in_can_still_be_changed(api: client.KubeClient, allowed: str) -> None:
    await api.create(objects.pods(allowed), objects.pod("a", **OPTED_IN))
    taken_away = {"metadata": {"labels": {"kubemend.io/restart": None}}}
    await api.patch(f"{paths.collection('namespaces')}/{allowed}", taken_away, content_type=client.Patch.MERGE)
    await eventually.true(lambda: refuses(api, allowed))
    await api.patch(paths.pod(allowed, "a"), {"metadata": {"labels": {"a": "b"}}})


async def test_restarts_are_requested_where_allowed(api: client.KubeClient, allowed: str, forbidden: str) -> None:
    await api.create(names.collection(allowed), restarts.restart("a"))
    with pytest.raises(errors.ForbiddenError, match=f"namespace {forbidden} {REFUSED}"):
        await api.create(names.collection(forbidden), restarts.restart("a"))


async def test_controllers_record_of_a_round_is_not_a_request(
    cluster: Cluster, api: client.KubeClient, forbidden: str
) -> None:
    async with cluster.account(installation.CONTROLLER) as controller:
        await controller.create(names.collection(forbidden), restarts.new_round(forbidden).body("a"))
