"""An API server with the definition of JobSets, and one replica that runs them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode.apiproxy import ApiProxy
from kubemend.common.kube import paths
from tests.control_plane import ControlPlane, Tenant
from tests.unit.jobsets import rig


@pytest.fixture
def server(tenant: Tenant) -> ApiProxy:
    return tenant.server


@pytest.fixture
async def bench(tenant: Tenant) -> AsyncIterator[rig.Bench]:
    async with rig.Client(tenant.kubeconfig) as api:
        yield rig.Bench(tenant.server, api, namespace=tenant.namespace)


@pytest.fixture
async def leader(tenant: Tenant) -> AsyncIterator[rig.Leader]:
    async with rig.Client(tenant.kubeconfig) as api:
        yield rig.Leader(api)


@pytest.fixture(autouse=True)
def without_nodes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the nodes that a test has created, because the next test counts those of the whole cluster."""
    yield
    if "bench" in request.fixturenames:
        control_plane: ControlPlane = request.getfixturevalue("control_plane")
        for name in ("node-a", "node-b"):
            control_plane.remove(f"{paths.NODES}/{name}")
