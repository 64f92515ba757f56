"""Provide a client of the worker's API server.

Each file of tests removes the admission policies that it applied.
"""

import time
import urllib.error
from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode import accounts
from kubemend.common.kube import client, paths
from kubemend.controller.jobset.spec import model
from tests.contract.api import jobsets, objects
from tests.control_plane import ControlPlane, Tenant
from tests.unit.jobset import refused

_REFUSED = (
    (objects.pods("default"), objects.pod("x", annotations={"kubemend.io/restart": "InPlace"})),
    (jobsets.collection("default"), {"apiVersion": model.API_VERSION, **refused.BY_POLICY[0].refused}),
)
"""Creations that an applied policy refuses to every account."""


@pytest.fixture
async def api(tenant: Tenant) -> AsyncIterator[client.KubeClient]:
    async with tenant.client() as connected:
        yield connected


@pytest.fixture(scope="module", autouse=True)
def without_the_controllers_objects(control_plane: ControlPlane) -> Iterator[None]:
    """Delete what a controller keeps in its namespace: the next module may make it in the controller's name."""
    yield
    for resource, group in (("leases", "coordination.k8s.io"), ("secrets", ""), ("configmaps", "")):
        control_plane.remove(paths.collection(resource, namespace=accounts.NAMESPACE, group=group))


@pytest.fixture(scope="module", autouse=True)
def without_policies(control_plane: ControlPlane) -> Iterator[None]:
    """Delete all admission policies, and wait until none is in force: the server needs a moment to notice."""
    yield
    if not control_plane.call("GET", jobsets.BINDINGS)["items"]:
        return
    for collection in (jobsets.BINDINGS, jobsets.POLICIES):
        control_plane.remove(collection)
    for path, body in _REFUSED:
        while not _is_taken(control_plane, f"{path}?dryRun=All", body):
            time.sleep(0.05)


def _is_taken(control_plane: ControlPlane, path: str, body: objects.Json) -> bool:
    try:
        control_plane.call("POST", path, body)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (403, 422):
            raise
        return False
    return True
