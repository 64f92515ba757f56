"""The component pod-groups: pods of a PodGroup get the label of a gang."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubemend.common import gangs
from kubemend.common.kube import client, paths
from tests import eventually
from tests.contract.api import installation, objects
from tests.contract.api.installation import Cluster

pytestmark = pytest.mark.long

OPTED_IN = {"kubemend.io/restart": "InPlace"}
SERVED = ("--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true")
LONGEST = "a" * 63

Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installation.installed(tmp_path_factory.mktemp("groups"), "pod-groups", options=SERVED) as made:
        yield made


@pytest.fixture
def plain_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without PodGroups."""
    with installation.installed(tmp_path, "pod-groups") as made:
        yield made


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[client.KubeClient]:
    """An administrator, once the policy is in force."""
    async with cluster.administrator() as connected:
        await eventually.true(lambda: _in_force(connected))
        yield connected


async def created(
    api: client.KubeClient, *, group: str, annotations: Json = OPTED_IN, labels: Json | None = None
) -> Json:
    """Return the pod that the API server would create."""
    pod = objects.pod("x", annotations=annotations, labels=labels or {})
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}
    return await api.create(f"{objects.pods('default')}?dryRun=All", pod)


async def gang_of(api: client.KubeClient, **wanted: Any) -> gangs.GangKey | None:
    """Return the gang of the pod that the API server would create."""
    pod = await created(api, **wanted)
    return gangs.key("default", pod["metadata"].get("labels") or {})


async def test_api_server_serves_pod_groups(api: client.KubeClient) -> None:
    """Without the feature it would drop the field, and the tests below would show nothing."""
    groups = paths.collection("podgroups", namespace="default", group="scheduling.k8s.io", version="v1alpha2")
    wanted = {"metadata": {"name": "train"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    await api.create(groups, wanted)
    pod = await created(api, group="train", annotations={})
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "train"}


@pytest.mark.parametrize("group", ["train", "team.train-1", LONGEST])
async def test_pod_of_a_pod_group_is_in_a_gang_of_its_name(api: client.KubeClient, group: str) -> None:
    assert await gang_of(api, group=group, labels={"app": "x"}) == gangs.GangKey("default", "Gang", group)


async def test_name_that_no_label_can_have_makes_no_gang_and_no_error(api: client.KubeClient) -> None:
    assert await gang_of(api, group=f"{LONGEST}a") is None


async def test_pod_that_did_not_opt_in_is_not_changed(api: client.KubeClient) -> None:
    assert "labels" not in (await created(api, group="train", annotations={}))["metadata"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({gangs.GANG: gangs.ALONE}, None),
        ({gangs.GANG: "own"}, gangs.GangKey("default", "Gang", "own")),
        ({gangs.JOBSET_NAME: "set"}, gangs.GangKey("default", "JobSet", "set")),
        ({gangs.JOB_NAME: "job", gangs.JOB_INDEX: "0"}, gangs.GangKey("default", "Job", "job")),
        ({gangs.LWS_NAME: "set", gangs.LWS_GROUP: "0"}, gangs.GangKey("default", gangs.LWS, "set-0")),
    ],
)
async def test_pod_that_is_in_a_gang_stays_in_it(
    api: client.KubeClient, labels: Json, expected: gangs.GangKey | None
) -> None:
    assert await gang_of(api, group="train", labels=labels) == expected


async def test_feature_that_is_off_hides_the_group_and_not_the_gang(plain_cluster: Cluster) -> None:
    async with plain_cluster.administrator() as api:
        await eventually.true(lambda: _in_force(api))
        pod = await created(api, group="train")
        without = await api.create(f"{objects.pods('default')}?dryRun=All", objects.pod("y", annotations=OPTED_IN))
    assert pod["metadata"]["labels"] == {gangs.GANG: "train"}
    assert "schedulingGroup" not in pod["spec"], "the API server drops the field"
    assert "labels" not in without["metadata"]


async def _in_force(api: client.KubeClient) -> bool:
    return await gang_of(api, group="ready") is not None
