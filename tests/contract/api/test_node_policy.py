"""The NetworkPolicy that the leader keeps, on a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths
from kubemend.controller.hub.node_policy import NodePolicy
from kubemend.controller.watches.nodes import Nodes
from tests.control_plane import Tenant
from tests.unit.daemonset import manifests

NAME = "kubemend-hub-from-nodes"
SECONDS = 60.0


class Keeping:
    """A policy that the leader keeps, its nodes, and the reports about it."""

    def __init__(self, api: client.KubeClient, namespace: str) -> None:
        self.nodes = Nodes(api=api, report=lambda _: None, backoff=aio.Backoff(first=0.05, limit=0.2))
        self.policy = NodePolicy(
            api=api,
            nodes=self.nodes,
            namespace=namespace,
            name=NAME,
            report=self._reported,
            pause=0.0,
            backoff=aio.Backoff(first=0.05, limit=0.2),
        )
        self._api = api
        self._path = paths.one("networkpolicies", NAME, namespace=namespace, group="networking.k8s.io")
        self._states: asyncio.Queue[ComponentState] = asyncio.Queue()

    async def reported(self, state: ComponentState) -> None:
        """Wait for a report of that state."""
        async with asyncio.timeout(SECONDS):
            while await self._states.get() is not state:
                pass

    async def admitted(self) -> set[str]:
        """Return the addresses that the policy admits to the hub's port.

        It has no rule while the informer has not listed a node yet.
        """
        rules = (await self._api.get(self._path))["spec"].get("ingress", [])
        assert all(rule["ports"] == [{"port": "hub", "protocol": "TCP"}] for rule in rules)
        return {each["ipBlock"]["cidr"] for rule in rules for each in rule["from"]}

    def _reported(self, status: ComponentStatus) -> None:
        self._states.put_nowait(status.state)


async def create_policy(api: client.KubeClient, namespace: str) -> None:
    objects = manifests.combined(manifests.DAEMONSET / "controller", manifests.DAEMONSET / "hub-from-nodes")
    (policy,) = [each for each in objects if each["metadata"]["name"] == NAME]
    policy["metadata"]["namespace"] = namespace
    await api.create(paths.collection("networkpolicies", namespace=namespace, group="networking.k8s.io"), policy)


async def create_node(api: client.KubeClient, name: str, *addresses: str) -> dict[str, Any]:
    made = await api.create(paths.NODES, {"metadata": {"name": name}})
    status = {"addresses": [{"type": "InternalIP", "address": each} for each in addresses]}
    await api.patch_status(f"{paths.NODES}/{name}", {"status": status})
    return made


@pytest.fixture
async def keeping(api: client.KubeClient, namespace: str) -> AsyncIterator[Keeping]:
    found = Keeping(api, namespace)
    tasks = [asyncio.create_task(found.nodes.run()), asyncio.create_task(found.policy.run())]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_policy_follows_the_nodes(
    api: client.KubeClient, namespace: str, tenant: Tenant, keeping: Keeping
) -> None:
    await create_policy(api, namespace)
    first, second = f"{tenant.node}-1", f"{tenant.node}-2"
    await create_node(api, first, "192.0.2.1", "2001:db8::1")
    async with asyncio.timeout(SECONDS):
        await create_node(api, second, "192.0.2.9")
        await keeping.reported(ComponentState.READY)
        while not {"192.0.2.1/32", "2001:db8::1/128", "192.0.2.9/32"} <= await keeping.admitted():
            await keeping.reported(ComponentState.READY)
        await api.delete(f"{paths.NODES}/{second}")
        while "192.0.2.9/32" in await keeping.admitted():
            await keeping.reported(ComponentState.READY)
    assert {"192.0.2.1/32", "2001:db8::1/128"} <= await keeping.admitted()
    await api.delete(f"{paths.NODES}/{first}")


async def test_missing_policy_is_reported_and_written_once_it_exists(
    api: client.KubeClient, namespace: str, tenant: Tenant, keeping: Keeping
) -> None:
    await create_node(api, f"{tenant.node}-3", "192.0.2.3")
    await keeping.reported(ComponentState.DEGRADED)
    with pytest.raises(errors.NotFoundError):
        await keeping.admitted()
    await create_policy(api, namespace)
    await keeping.reported(ComponentState.READY)
    assert "192.0.2.3/32" in await keeping.admitted()
    await api.delete(f"{paths.NODES}/{tenant.node}-3")
