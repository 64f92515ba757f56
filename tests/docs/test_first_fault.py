"""The README's first fault on a test cluster has the documented result, with real containers."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from hack.devnode import images, patience
from hack.devnode.cluster import Cluster
from hack.devnode.rounds import Rounds
from kubemend import cli
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerState, ContainerSummary, PodUid
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import clusters
from tests.scenarios.gang.product import Product
from tests.unit.docs import commands, pages
from tests.unit.docs.commands import Command

pytestmark = pytest.mark.devnode

SECONDS: Final = 120.0
NAMESPACE: Final = "default"
PODS: Final = paths.collection("pods", namespace=NAMESPACE)

Json = dict[str, Any]


def typed(program: str) -> list[Command]:
    """Return the commands of a program in the README's part on the first fault."""
    part = (pages.ROOT / "README.md").read_text("utf-8").partition("## A first fault\n")[2].partition("\n## ")[0]
    return [each for each in commands.commands(part) if each.program == program]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with clusters.running(f"first-{os.getpid()}", nodes=1) as made:
        yield made


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[kube.KubeClient]:
    async with kube.connect(kubeconfig=cluster.first.kubeconfig, deadlines=patience.API) as connected:
        yield connected


async def test_one_worker_fails_and_all_start_over_where_they_are(
    cluster: Cluster, api: kube.KubeClient, tmp_path: Path
) -> None:
    (applied,) = [each for each in typed("kubectl") if each.words[1] == "apply"]
    job = yaml.safe_load(applied.given)
    (fault,) = typed("kill")
    async with Product.on(cluster, state=tmp_path) as product:
        await product.start(nodes=1)
        names = await created(api, job, on=cluster.first.name)
        try:
            before = await until_ready(api, names)
            await execute(cluster, before[0], fault.words)
            rounds = Rounds(api, gangs.GangKey(NAMESPACE, "Job", job["metadata"]["name"]))
            restart = await rounds.finished(1)
            after = await until_ready(api, names, restarts=1)
        finally:
            await deleted(api, names)
    reported = restart["status"]
    assert (reported["phase"], reported["trigger"]["code"], reported["decision"]["kind"]) == (
        "Done",
        "Exit1",
        "InPlace",
    )
    assert reported["members"]["total"] == reported["members"]["running"] == len(names) == 4
    assert [place(pod) for pod in after] == [place(pod) for pod in before]
    await asyncio.to_thread(is_drawn, restart["metadata"]["name"], cluster.first.kubeconfig)


def is_drawn(restart: str, kubeconfig: Path) -> None:
    drawn = CliRunner().invoke(cli.main, ["timeline", restart, "-n", NAMESPACE, "--kubeconfig", str(kubeconfig)])
    assert drawn.exit_code == 0, drawn.output


async def created(api: kube.KubeClient, job: Json, *, on: str) -> list[str]:
    """Create the Job, and its pods as the Job controller and the scheduler would; return their names."""
    made = await api.create(paths.collection("jobs", namespace=NAMESPACE, group="batch"), job)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    template = job["spec"]["template"]
    names = [f"{owner['name']}-{index}-abcde" for index in range(job["spec"]["completions"])]
    for index, name in enumerate(names):
        metadata = {
            **template["metadata"],
            "name": name,
            "namespace": NAMESPACE,
            "labels": {gangs.JOB_NAME: owner["name"], gangs.JOB_INDEX: str(index)},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        }
        (worker,) = template["spec"]["containers"]
        own = {
            "nodeName": on,
            "nodeSelector": {},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [{**worker, "image": images.BUSYBOX, "imagePullPolicy": "Never"}],
        }
        await api.create(PODS, {"kind": "Pod", "metadata": metadata, "spec": {**template["spec"], **own}})
    return names


async def until_ready(api: kube.KubeClient, names: list[str], *, restarts: int = 0) -> list[Json]:
    """Wait until kubelet shows each pod's worker running, restarted at least that often; return the pods."""

    def runs(pod: Json) -> bool:
        shown = pod.get("status", {}).get("containerStatuses", ())
        return any("running" in each["state"] and each["restartCount"] >= restarts for each in shown)

    async with asyncio.timeout(SECONDS):
        while True:
            pods = [await api.get(paths.pod(NAMESPACE, name)) for name in names]
            if all(map(runs, pods)):
                return pods
            await asyncio.sleep(0.1)


async def execute(cluster: Cluster, pod: Json, command: tuple[str, ...]) -> None:
    """Run a command in a pod, as ``kubectl exec`` does; its trainer must have set its trap, so the log is read."""
    async with CriClient(str(cluster.first.layout.containerd_socket), deadlines=patience.RUNTIME) as cri:
        container = await running(cri, PodUid(pod["metadata"]["uid"]))
        info = await cri.container_status(container.id)
        async with asyncio.timeout(SECONDS):
            while "begun" not in Path(str(info.log_path)).read_text():  # noqa: ASYNC110, ASYNC240 - another process's
                await asyncio.sleep(0.05)
        await cri.exec_sync(container.id, command, timeout=SECONDS)


async def running(cri: CriClient, uid: PodUid) -> ContainerSummary:
    found = await cri.list_containers(pod_uid=uid)
    (container,) = [each for each in found if each.state is ContainerState.RUNNING]
    return container


def place(pod: Json) -> tuple[str, str, str]:
    return pod["metadata"]["uid"], pod["status"]["podIP"], pod["spec"]["nodeName"]


async def deleted(api: kube.KubeClient, names: list[str]) -> None:
    for name in names:
        await api.delete(paths.pod(NAMESPACE, name), options={"gracePeriodSeconds": 0})
