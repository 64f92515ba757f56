"""GPUs are proved between the kill and the release of a round, on the fake CUDA driver."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.cluster import Cluster
from hack.devnode.gangs import Gang
from hack.devnode.node import DevNode
from hack.devnode.rounds import Rounds
from hack.fakecuda import control as cuda_control
from hack.fakecuda.control import FakeCuda, Wrong
from hack.fakenvml import control as nvml_control
from kubemend.common.kube import client as kube
from tests.scenarios import training
from tests.scenarios.gang import sentences
from tests.scenarios.gang.product import Product

pytestmark = pytest.mark.devnode

AMPLE = "--proof-timeout=20s"  # a proof on the fake takes one or two seconds of a busy processor
PASSED = {"result": "Passed", "reason": ""}


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The CUDA driver of the nodes. Their GPUs have the same UUIDs, so it is one for both."""
    library = cuda_control.build(tmp_path / "cuda-library")
    with FakeCuda(tmp_path / "cuda", library.parent, gpus=4) as made:
        for name, value in made.env().items():
            monkeypatch.setenv(name, value)
        yield made
        made.resume()


async def start(product: Product, flag: str) -> None:
    await product.start_controller()
    await asyncio.gather(*(product.start_agent(index, flag) for index in range(2)))


async def xid(gang: Gang, index: int) -> tuple[int, int]:
    """Let a member's GPU report a fault of its process; return the GPU, and the moment."""
    node = gang.nodes[index]
    gpu = min(node.gpu_uuids.index(uuid) for uuid in await gang.devices(index))
    pid, fault = await gang.pid(index), time.monotonic_ns()
    node.kernel_log.write_xid(31, pci=nvml_control.kernel_address(gpu), pid=pid, name="pulse", text="MMU Fault")
    return gpu, fault


async def gpu_of(gang: Gang, index: int) -> int:
    return min(gang.nodes[index].gpu_uuids.index(uuid) for uuid in await gang.devices(index))


async def devices_healthy(api: kube.KubeClient, node: DevNode, *, reason: str) -> dict[str, Any]:
    """Wait until the node's condition has this reason."""
    async with asyncio.timeout(training.DEADLINE):
        while True:
            found = (await api.get(f"/api/v1/nodes/{node.name}"))["status"].get("conditions", ())
            ours = [each for each in found if each["type"] == "kubemend.io/DevicesHealthy"]
            if ours and ours[0]["reason"] == reason:
                return dict(ours[0])
            await asyncio.sleep(0.05)


async def test_member_on_a_gpu_that_computes_wrongly_is_recreated_in_the_same_round(
    cluster: Cluster, product: Product, api: kube.KubeClient, cuda: FakeCuda
) -> None:
    await start(product, AMPLE)
    async with Gang.on(cluster.nodes, "wrong") as gang:
        before = await gang.identities()
        cuda.wrong(Wrong.TENSOR, gpu=await gpu_of(gang, 1))
        gpu, fault = await xid(gang, 1)
        uuid = cluster.nodes[1].gpu_uuids[gpu]
        await gang.gone(1, before[1][0])
        await sentences.held(gang, 0, 2, 3)
        await gang.replace(1, node=cluster.first)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert restart["status"]["phase"] == "Done", restart["status"]
        assert restart["status"]["members"]["recreated"] == 1
        await gang.all_running(since=fault)
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        after = await gang.identities()
        assert [after[index] for index in (0, 2, 3)] == [before[index] for index in (0, 2, 3)]
        assert after[1][2] == cluster.first.name
        condition = await devices_healthy(api, cluster.nodes[1], reason="WrongResult")
        assert (condition["status"], uuid in condition["message"]) == ("False", True), condition
        failed = {"result": "Failed", "reason": "WrongResult"}
        assert await training.metric(product.agents[1], "kubemend_restart_device_proofs_total", **failed) == 1


@pytest.mark.long
async def test_all_gpus_of_a_gang_are_proved_from_its_second_round_on(
    cluster: Cluster, product: Product, api: kube.KubeClient, cuda: FakeCuda
) -> None:
    await start(product, AMPLE)
    async with Gang.on(cluster.nodes, "right") as gang:
        assert cuda is not None
        before, rounds = await gang.identities(), Rounds(api, gang.template.key)
        gpus = [len(await gang.devices(index)) for index in range(gang.size)]
        for number, proved in ((1, 0), (2, sum(gpus))):
            fault = await gang.kill(0)
            restart = await rounds.finished(number)
            assert sentences.is_done(restart, members=4)
            await gang.all_running(since=fault)
            await gang.shown_running()
            passed = [
                await training.series(agent, "kubemend_restart_device_proofs_total", **PASSED)
                for agent in product.agents.values()
            ]
            assert sum(each or 0 for each in passed) == proved
        assert await gang.identities() == before


@pytest.mark.long
@pytest.mark.parametrize("never", [pytest.param(True, id="never"), pytest.param(False, id="slowly")])
async def test_gpu_without_a_verdict_in_time_delays_its_gang_by_the_timeout_only(
    cluster: Cluster, product: Product, api: kube.KubeClient, cuda: FakeCuda, *, never: bool
) -> None:
    await start(product, "--proof-timeout=1s" if never else "--proof-timeout=20ms")
    async with Gang.on(cluster.nodes, "never" if never else "slowly") as gang:
        before = await gang.identities()
        if never:
            cuda.hang("cuLaunchKernel", gpu=await gpu_of(gang, 1))
        _, fault = await xid(gang, 1)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=4)
        await gang.all_running(since=fault)
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        assert await gang.identities() == before
        failed = await training.series(
            product.agents[1], "kubemend_restart_device_proofs_total", result="Failed", reason="DidNotAnswer"
        )
        assert failed is None


@pytest.mark.long
async def test_agent_that_dies_during_a_proof_leaves_its_round_to_the_next_agent(
    cluster: Cluster, product: Product, api: kube.KubeClient, cuda: FakeCuda
) -> None:
    await start(product, AMPLE)
    async with Gang.on(cluster.nodes, "killed") as gang:
        before = await gang.identities()
        cuda.hang("cuLaunchKernel", gpu=await gpu_of(gang, 1))
        _, fault = await xid(gang, 1)
        await sentences.held(gang, 0, 2, 3)  # the other one is on standby until its GPU is proved
        await product.kill_agent(1)
        await product.start_agent(1, AMPLE)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=4)
        await gang.all_running(since=fault)
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        assert await gang.identities() == before
