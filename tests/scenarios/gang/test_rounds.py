"""One member fails, and the whole gang is restarted in one round: all old containers die before a new one runs."""

import time

import pytest

from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import Shape
from hack.devnode.gangs import Gang
from hack.devnode.rounds import Rounds
from hack.fakenvml import control as nvml_control
from kubemend.common.kube import client as kube
from tests.scenarios.gang import sentences
from tests.scenarios.gang.product import Product

pytestmark = pytest.mark.devnode


async def test_one_members_exit_restarts_the_whole_gang_in_place(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "exits") as gang:
        before = await gang.identities()
        rounds = Rounds(api, gang.template.key)
        for number in (1, 2):
            steps = [gang.step(index) for index in range(gang.size)]
            fault = await gang.kill(0) if number == 1 else await gang.end(2, exit_code=1)
            restart = await rounds.finished(number)
            assert sentences.is_done(restart, members=4)
            assert restart["status"]["trigger"]["kind"] == "Exit"
            assert restart["status"]["decision"]["kind"] == "InPlace"
            await gang.all_running(since=fault)
            assert gang.barrier(since=fault).old == 4
            assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
            await gang.shown_running()
            assert await sentences.one_each(gang)
            assert await gang.identities() == before
            assert all(gang.step(index) >= steps[index] for index in range(gang.size))
        assert len(await rounds.all()) == 2


@pytest.mark.long
async def test_launchers_restart_the_programs_of_the_members_that_still_run(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    """The container whose launcher was killed is replaced, those of the others stay."""
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "launched", shape=Shape(launched=True)) as gang:
        await gang.launchers_followed()
        before, pids = await gang.identities(), [await gang.pid(index) for index in range(gang.size)]
        fault = await gang.kill(0)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=4)
        await gang.all_running(since=fault)
        assert gang.barrier(since=fault).old == 4
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        assert await gang.identities() == before
        after = [await gang.pid(index) for index in range(gang.size)]
        assert [old == new for old, new in zip(pids, after, strict=True)] == [False, True, True, True]


@pytest.mark.long
async def test_a_program_that_fails_under_its_launcher_restarts_all_programs_and_no_container(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "programs", shape=Shape(launched=True)) as gang:
        await gang.launchers_followed()
        mains = [await gang.pid(index) for index in range(gang.size)]
        fault = await gang.kill_program(0)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=4)
        assert restart["status"]["trigger"]["code"] == "Exit137"
        await gang.all_running(since=fault)
        assert gang.barrier(since=fault).old == 4
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        assert [await gang.pid(index) for index in range(gang.size)] == mains


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
async def test_an_xid_on_one_nodes_gpu_restarts_the_whole_gang(
    cluster: Cluster, product: Product, api: kube.KubeClient, policy: str
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, f"xid-{policy.lower()}", shape=Shape(restart_policy=policy)) as gang:
        before = await gang.identities()
        hit = cluster.nodes[1]
        gpu = min(hit.gpu_uuids.index(uuid) for uuid in await gang.devices(1))
        pid = await gang.pid(1)
        fault = time.monotonic_ns()
        hit.kernel_log.write_xid(31, pci=nvml_control.kernel_address(gpu), pid=pid, name="pulse", text="MMU Fault")
        restart = await Rounds(api, gang.template.key).finished(1)
        assert sentences.is_done(restart, members=4)
        trigger = restart["status"]["trigger"]
        assert (trigger["kind"], trigger["code"], trigger["node"]) == ("Device", "Xid31", hit.name)
        await gang.all_running(since=fault)
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        await gang.shown_running()
        assert await gang.identities() == before


async def test_exit_0_completes_a_member_and_excludes_it_from_rounds(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "completes") as gang:
        rounds = Rounds(api, gang.template.key)
        await gang.end(2, exit_code=0)
        await gang.over(2)
        fault = await gang.end(1, exit_code=1)
        restart = await rounds.finished(1)
        assert restart["status"]["phase"] == "Done"
        assert restart["status"]["trigger"]["member"] == (await gang.pod(1))["metadata"]["name"]
        await gang.all_running(since=fault, count=3)
        assert len(await rounds.all()) == 1
        assert [life.member for life in gang.lives()].count(gang.template.member(2)) == 1
        assert (await gang.pod(2))["status"]["phase"] == "Succeeded"


async def test_two_failures_at_once_are_one_round(cluster: Cluster, product: Product, api: kube.KubeClient) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "twice") as gang:
        fault = await gang.kill(0, 3)
        rounds = Rounds(api, gang.template.key)
        restart = await rounds.finished(1)
        assert sentences.is_done(restart, members=4)
        await gang.all_running(since=fault)
        await gang.shown_running()
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        assert len(await rounds.all()) == 1


async def test_restart_object_of_a_user_restarts_the_gang(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(nodes=2)
    async with Gang.on(cluster.nodes, "asked") as gang:
        before = await gang.identities()
        rounds = Rounds(api, gang.template.key)
        asked = time.monotonic_ns()
        await rounds.ask("please", reason="a new data set")
        restart = await rounds.finished(1)
        assert restart["metadata"]["name"] == "please"
        assert sentences.is_done(restart, members=4)
        assert restart["status"]["trigger"]["kind"] == "Request"
        assert "a new data set" in restart["status"]["trigger"]["message"]
        await gang.all_running(since=asked)
        assert sentences.proved(gang, restart, since=asked), gang.barrier(since=asked)
        await gang.shown_running()
        assert await gang.identities() == before
