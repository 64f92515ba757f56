"""The hub's requests to the API server: token reviews, and the Secret of its certificates."""

import asyncio

import pytest

from kubemend.common.kube import client, paths
from kubemend.controller.certificates import keeper
from kubemend.controller.certificates.keeper import Keeper, KeeperOptions
from kubemend.controller.hub.identity import AUDIENCE, TokenReviewer
from kubemend.controller.hub.refusals import RefusedError
from tests.contract.api import objects


async def test_an_agents_token_names_its_node(api: client.KubeClient, namespace: str, node: str) -> None:
    accounts = paths.collection("serviceaccounts", namespace=namespace)
    await api.create(accounts, {"metadata": {"name": "agent"}})
    await api.create(paths.NODES, {"metadata": {"name": node}})
    wanted = objects.pod("agent", node=node)
    wanted["spec"]["serviceAccountName"] = "agent"
    pod = (await api.create(objects.pods(namespace), wanted))["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    asked = {"spec": {"audiences": [AUDIENCE], "boundObjectRef": bound}}
    token = (await api.create(f"{accounts}/agent/token", asked))["status"]["token"]
    user = f"system:serviceaccount:{namespace}:agent"
    assert (await TokenReviewer(api, user=user).review(token)).node == node
    with pytest.raises(RefusedError, match="the token is not valid"):
        await TokenReviewer(api, user=user, audience="another").review(token)
    with pytest.raises(RefusedError, match="agents run as"):
        await TokenReviewer(api, user="system:serviceaccount:other:agent").review(token)


async def test_replicas_agree_on_certificates(api: client.KubeClient, namespace: str) -> None:
    keepers = [Keeper(api, KeeperOptions(namespace=namespace)) for _ in range(3)]
    await asyncio.gather(*(each.ready() for each in keepers))
    secret = await api.get(f"{paths.collection('secrets', namespace=namespace)}/{keeper.SECRET}")
    bundle = await api.get(f"{paths.collection('configmaps', namespace=namespace)}/{keeper.CONFIG_MAP}")
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert bundle["data"]["ca.crt"].count("BEGIN CERTIFICATE") == 1
    await asyncio.gather(*(each.refresh() for each in keepers))
    again = await api.get(f"{paths.collection('secrets', namespace=namespace)}/{keeper.SECRET}")
    assert again["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"]
