"""Provide an API server with the components whose policies change or refuse pods; they are installed together."""

from collections.abc import AsyncIterator, Iterator

import pytest

from kubemend.common.kube import client, errors
from tests import eventually
from tests.contract.api import installation, objects
from tests.contract.api.installation import Cluster

OPTED_IN = {"kubemend.io/restart": "InPlace"}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The server. Pods of the namespace ``default`` may opt in."""
    components = ("caches", "launcher", "restart-namespaces")
    with installation.installed(tmp_path_factory.mktemp("components"), *components) as made:
        made.kubectl("label", "namespace", "default", "kubemend.io/restart=allowed")
        yield made


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[client.KubeClient]:
    """An administrator, once all policies are in force: they apply to administrators, too."""

    async def in_force() -> bool:
        return await changes(connected) and await refuses(connected)

    async with cluster.administrator() as connected:
        await eventually.true(in_force)
        yield connected


async def changes(api: client.KubeClient) -> bool:
    """Try to create a pod that gets a volume from each component that adds one."""
    pod = objects.pod("x", annotations={**OPTED_IN, "kubemend.io/launcher": "trainer"})
    pod["spec"]["containers"][0]["command"] = ["python", "train.py"]
    try:
        made = await api.create(f"{objects.pods('default')}?dryRun=All", pod)
    except errors.ForbiddenError:  # the namespace's label has not been noticed
        return False
    return {each["name"] for each in made["spec"].get("volumes", ())} == {"kubemend-cache", "kubemend-launcher"}


async def refuses(api: client.KubeClient, namespace: str = "kube-system") -> bool:
    """Try to create a pod that opts in; the API server notices the labels of a namespace a little later."""
    try:
        await api.create(f"{objects.pods(namespace)}?dryRun=All", objects.pod("x", annotations=OPTED_IN))
    except errors.ForbiddenError:
        return True
    return False
