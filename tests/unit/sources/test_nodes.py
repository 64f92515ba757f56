"""The state of the node, and its shutdown in a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from kubemend.agent.sources import nodes
from kubemend.common import aio
from kubemend.common.kube import client, paths
from tests.control_plane import Tenant

SHUTS_DOWN: Final = "node is shutting down"


def condition(kind: str, status: str, message: str = "") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status, "message": message}]}}


@pytest.mark.parametrize("node", [{}, {"status": None}, {"status": {"conditions": ["x", {"type": 3}]}}])
def test_node_without_such_conditions_ends_no_pods(node: dict[str, Any]) -> None:
    assert nodes.node_state(node) == nodes.NodeState()


def test_node_that_is_ready_again_ends_no_pods() -> None:
    ready = condition("Ready", "True", "kubelet is posting ready status")
    assert nodes.node_state(ready) == nodes.NodeState()
    assert replace(nodes.NodeState(), under_pressure=True) == nodes.node_state(condition("PIDPressure", "True"))


@dataclass
class Env:
    """A running NodeWatch and what it has called for."""

    api: client.KubeClient
    node: str
    shutdowns: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)

    async def ready(self, status: str, message: str) -> None:
        """Write the condition Ready as kubelet does."""
        await self.api.patch_status(paths.one("nodes", self.node), condition("Ready", status, message))

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow the node during the block."""
        watch = nodes.NodeWatch(
            api=self.api,
            node_name=self.node,
            shutdown=self.shutdowns.put_nowait,
            report=lambda _: None,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        task = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with asyncio.timeout(60), tenant.client() as api:
        await api.create(paths.NODES, {"metadata": {"name": tenant.node}})
        yield Env(api, tenant.node)


async def test_shutdown_and_its_cancellation_are_reported_once_each(env: Env) -> None:
    async with env.watching():
        await env.ready("True", "kubelet is posting ready status")
        await env.ready("False", SHUTS_DOWN)
        assert await env.shutdowns.get() is True
        await env.ready("False", f"[container runtime is down, {SHUTS_DOWN}]")
        await env.ready("True", "kubelet is posting ready status")
        assert await env.shutdowns.get() is False
        assert env.shutdowns.empty()


async def test_agent_that_starts_on_a_node_that_shuts_down_hears_of_it(env: Env) -> None:
    await env.ready("False", SHUTS_DOWN)
    async with env.watching():
        assert await env.shutdowns.get() is True


async def test_node_that_is_deleted_no_longer_shuts_down(env: Env) -> None:
    await env.ready("False", SHUTS_DOWN)
    async with env.watching():
        assert await env.shutdowns.get() is True
        await env.api.delete(paths.one("nodes", env.node), options={})
        assert await env.shutdowns.get() is False


async def test_node_that_is_not_ready_for_another_reason_does_not_shut_down(env: Env) -> None:
    async with env.watching():
        await env.ready("False", "container runtime is down")
        await env.ready("False", SHUTS_DOWN)
        assert await env.shutdowns.get() is True
        assert env.shutdowns.empty()
