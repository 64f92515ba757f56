"""An API server with the definition of JobSets, and one replica that runs them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode.apiproxy import ApiProxy
from kubemend.common.kube import paths
from tests.control_plane import ControlPlane, Tenant
from tests.unit.jobsets.env import Client, JobSetEnv, Leader


@pytest.fixture
def server(tenant: Tenant) -> ApiProxy:
    return tenant.server


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[JobSetEnv]:
    async with Client(tenant.kubeconfig) as api:
        yield JobSetEnv(tenant.server, api, namespace=tenant.namespace)


@pytest.fixture
async def leader(tenant: Tenant) -> AsyncIterator[Leader]:
    async with Client(tenant.kubeconfig) as api:
        yield Leader(api)


@pytest.fixture(autouse=True)
def without_nodes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the nodes that a test has created, because the next test counts those of the whole cluster."""
    yield
    if "env" in request.fixturenames:
        control_plane: ControlPlane = request.getfixturevalue("control_plane")
        for name in ("node-a", "node-b"):
            control_plane.remove(f"{paths.NODES}/{name}")
