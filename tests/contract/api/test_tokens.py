"""Tokens of service accounts: their account, audience, and node."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kubemend.common import aio
from kubemend.common.kube import client, paths
from tests.contract.api import objects

AUDIENCE = "kubemend-hub"
EXTRA = "authentication.kubernetes.io/"


@pytest.fixture
async def account(api: client.KubeClient, namespace: str) -> str:
    """The path of a service account."""
    collection = paths.collection("serviceaccounts", namespace=namespace)
    await api.create(collection, {"metadata": {"name": "agent"}})
    return f"{collection}/agent"


@pytest.fixture
async def pod(api: client.KubeClient, account: str, namespace: str, node: str) -> Mapping[str, Any]:
    """A pod of that account, on a node that exists."""
    await api.create(paths.NODES, {"metadata": {"name": node}})
    wanted = objects.pod("agent", node=node)
    wanted["spec"]["serviceAccountName"] = account.rpartition("/")[2]
    return await api.create(objects.pods(namespace), wanted)


async def token(api: client.KubeClient, account: str, **spec: Any) -> str:
    answer = await api.create(f"{account}/token", {"spec": {"audiences": [AUDIENCE], **spec}})
    return str(answer["status"]["token"])


async def review(api: client.KubeClient, text: str, *audiences: str) -> Mapping[str, Any]:
    answer = await api.create(paths.TOKEN_REVIEWS, {"spec": {"token": text, "audiences": list(audiences)}})
    status: Mapping[str, Any] = answer["status"]
    return status


def bound(pod: Mapping[str, Any]) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}}


async def test_review_returns_the_account_and_the_pods_node(
    api: client.KubeClient, account: str, pod: Mapping[str, Any], namespace: str, node: str
) -> None:
    status = await review(api, await token(api, account, **bound(pod)), AUDIENCE)
    assert (status["authenticated"], status["audiences"]) == (True, [AUDIENCE])
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:agent"
    extra = status["user"]["extra"]
    assert extra[f"{EXTRA}node-name"] == [node]
    assert extra[f"{EXTRA}pod-name"] == ["agent"]
    assert extra[f"{EXTRA}pod-uid"] == [pod["metadata"]["uid"]]


async def test_token_that_is_bound_to_no_pod_names_no_node(api: client.KubeClient, account: str) -> None:
    status = await review(api, await token(api, account), AUDIENCE)
    assert status["authenticated"]
    assert f"{EXTRA}node-name" not in status["user"]["extra"]


async def test_token_is_valid_for_its_audiences_only(api: client.KubeClient, account: str) -> None:
    text = await token(api, account)
    for audiences in (("another-audience",), ()):  # none means the API server itself
        status = await review(api, text, *audiences)
        assert not status.get("authenticated")
        assert "username" not in status["user"]
    assert (await review(api, text, "somebody-else", AUDIENCE))["audiences"] == [AUDIENCE]


async def test_token_ends_with_its_pod(
    api: client.KubeClient, account: str, pod: Mapping[str, Any], namespace: str
) -> None:
    text = await token(api, account, **bound(pod))
    assert (await review(api, text, AUDIENCE))["authenticated"]
    await api.delete(paths.pod(namespace, "agent"), options={"gracePeriodSeconds": 0})
    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.2):  # the API server caches a review for 10 s
            if not (await review(api, text, AUDIENCE)).get("authenticated"):
                break
