"""Failures in mid-round, while members are held: the hub, an agent, the API server, a member, a node."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import cluster as clusters
from hack.devnode import node, patience, rounds
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import Shape
from hack.devnode.gangs import Gang
from hack.devnode.layout import NodeLayout
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.scenarios import training
from tests.scenarios.gang import sentences
from tests.scenarios.gang.product import PATIENT, Product

pytestmark = pytest.mark.devnode

ON_FIRST, ON_SECOND = (0, 2), (1, 3)
"""The members of a gang of four on two nodes."""

AWAY = 12.0
"""Seconds: a controller that cannot renew its Lease for ten of them is not the leader any more, until it can."""


async def fail_and_hold(product: Product, gang: Gang) -> int:
    """Stop the second node's agent, and have a member on the first one fail; return the moment before that.

    The members on the first node are held then, because those on the second one live on.
    """
    product.pause_agent(1)
    fault = await gang.end(0, exit_code=1)
    await sentences.held(gang, *ON_FIRST)
    await sentences.nothing_new_runs(gang, since=fault, beside=ON_SECOND[0])
    return fault


async def comes_to_its_end(gang: Gang, rounds: Rounds, *, since: int, members: int = 4) -> dict[str, Any]:
    """Wait for the end of the gang's one round: all run again, kubelet agrees, and no old container overlapped a new
    one.
    """
    restart = await rounds.finished(1)
    assert sentences.is_done(restart, members=members), json.dumps(restart["status"], indent=2)
    await gang.all_running(since=since)
    await gang.shown_running()
    assert sentences.proved(gang, restart, since=since), gang.barrier(since=since)
    assert await sentences.one_each(gang)
    assert len(await rounds.all()) == 1
    return restart


async def test_second_controller_continues_the_round_of_a_killed_one(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(*PATIENT, nodes=2)
    await product.start_controller(*PATIENT, number=2)
    async with Gang.on(cluster.nodes, "failover") as gang:
        before = await gang.identities()
        fault = await fail_and_hold(product, gang)
        first = await product.hub.leader()  # the other one, if this one was too slow to renew its Lease
        await product.kill_controller(next(n for n, each in product.controllers.items() if f"{each.name}_" in first))
        async with asyncio.timeout(training.DEADLINE):
            while await product.hub.leader() in ("", first):  # noqa: ASYNC110 - the Lease is polled
                await asyncio.sleep(0.1)
        await sentences.nothing_new_runs(gang, since=fault, beside=ON_SECOND[0])
        product.resume_agent(1)
        await comes_to_its_end(gang, Rounds(api, gang.template.key), since=fault)
        assert await gang.identities() == before


async def test_agent_killed_while_holding_is_followed_by_one_that_finishes(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, "bereft") as gang:
        before = await gang.identities()
        fault = await fail_and_hold(product, gang)
        await product.kill_agent(0)
        await sentences.nothing_new_runs(gang, since=fault, beside=ON_SECOND[0], agent=False)
        await product.start_agent(0)
        product.resume_agent(1)  # not before: the controller waits for 15 s only until a released member runs
        await comes_to_its_end(gang, Rounds(api, gang.template.key), since=fault)
        assert not any([await gang.is_frozen(index) for index in range(gang.size)])
        assert await gang.identities() == before


@pytest.mark.long
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6])
async def test_agent_killed_after_a_launchers_report_is_followed_by_one_that_finishes(
    cluster: Cluster, product: Product, api: kube.KubeClient, moment: float
) -> None:
    """The launcher holds the failure until the next agent asks, or the round's order from before."""
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, f"reported-{moment * 1000:.0f}", shape=Shape(launched=True)) as gang:
        await gang.launchers_followed()
        before, mains = await gang.identities(), [await gang.pid(index) for index in range(gang.size)]
        fault = await gang.kill_program(0)
        await asyncio.sleep(moment)
        await product.kill_agent(0)
        await product.start_agent(0)
        await comes_to_its_end(gang, Rounds(api, gang.template.key), since=fault)
        assert await gang.identities() == before
        assert [await gang.pid(index) for index in range(gang.size)] == mains


@pytest.mark.long
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6])
async def test_launcher_killed_in_a_round_of_programs_is_replaced_by_a_container(
    cluster: Cluster, product: Product, api: kube.KubeClient, moment: float
) -> None:
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, f"unled-{moment * 1000:.0f}", shape=Shape(launched=True)) as gang:
        await gang.launchers_followed()
        before, main = await gang.identities(), await gang.pid(1)
        await gang.kill_program(0)
        await asyncio.sleep(moment)
        killed = time.monotonic_ns()
        os.kill(main, signal.SIGKILL)
        await Rounds(api, gang.template.key).finished(1)
        await gang.all_running(since=killed)
        await gang.shown_running()
        assert await sentences.one_each(gang)
        assert await gang.identities() == before


async def test_member_that_kubelet_restarted_while_its_agent_was_away_is_restarted_with_its_gang(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, "missed") as gang:
        before = await gang.identities()
        await product.kill_agent(0)
        fault = await gang.end(0, exit_code=1)
        await gang.all_running(since=fault, count=1)
        back = time.monotonic_ns()
        await product.start_agent(0)
        await comes_to_its_end(gang, Rounds(api, gang.template.key), since=back)
        assert await gang.identities() == before


async def test_unavailable_api_server_delays_a_round_and_breaks_nothing(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, "deserted") as gang:
        before = await gang.identities()
        fault = await fail_and_hold(product, gang)
        cluster.first.api.pause()
        try:
            product.resume_agent(1)
            await asyncio.sleep(AWAY)
        finally:
            cluster.first.api.resume()
        await comes_to_its_end(gang, Rounds(api, gang.template.key), since=fault)
        assert await gang.identities() == before


async def test_without_a_hub_members_are_released_and_restarts_continue(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start("--stop-timeout=30s", "--hold-timeout=31s", nodes=2)
    async with Gang.on(cluster.nodes, "forsaken") as gang:
        fault = await fail_and_hold(product, gang)
        await product.kill_controller(1)
        released = await gang.all_running(since=fault, count=len(ON_FIRST))
        assert {life.member for life in released} == {gang.template.member(index) for index in ON_FIRST}
        await product.kill_agent(1)  # whether it would have read the round's message is a race of its connection
        await product.start_agent(1, with_hub=False)
        await gang.shown_running()
        alone = await gang.end(3, exit_code=1)
        await gang.all_running(since=alone, count=1)
        await gang.shown_running()
        assert {life.member for life in gang.lives() if life.began >= alone} == {gang.template.member(3)}


async def test_a_member_that_is_deleted_in_mid_round_is_replaced_and_joins(
    cluster: Cluster, product: Product, api: kube.KubeClient
) -> None:
    await product.start(*PATIENT, nodes=2)
    async with Gang.on(cluster.nodes, "evicted") as gang:
        before = await gang.identities()
        fault = await fail_and_hold(product, gang)
        uid = before[3][0]
        await gang.delete(3)
        await gang.gone(3, uid)
        await gang.replace(3)
        product.resume_agent(1)
        restart = await Rounds(api, gang.template.key).finished(1)
        assert restart["status"]["phase"] == "Done", restart["status"]
        await gang.all_running(since=fault)
        await gang.shown_running()
        assert sentences.proved(gang, restart, since=fault), gang.barrier(since=fault)
        after = await gang.identities()
        assert after[:3] == before[:3]
        assert after[3][0] != uid


async def test_members_of_a_lost_node_are_recreated_while_others_wait(tmp_path: Path) -> None:
    async with own_cluster("lost", nodes=2) as cluster, Product.on(cluster, state=tmp_path) as product:
        first, lost = cluster.nodes
        await product.start(nodes=2)
        async with (
            kube.connect(kubeconfig=first.kubeconfig, deadlines=patience.API) as api,
            Gang.on([first, lost, first, first], "bereaved") as gang,
        ):
            before = await gang.identities()
            await product.kill_agent(1)
            await clusters.power_off(lost)
            await clusters.out_of_service(api, lost.name)
            fault = await gang.end(0, exit_code=1)
            await gang.gone(1, before[1][0])
            await sentences.held(gang, 0, 2, 3)
            replaced = time.monotonic_ns()
            await gang.replace(1, node=first)
            restart = await Rounds(api, gang.template.key).finished(1)
            assert restart["status"]["phase"] == "Done", restart["status"]
            assert restart["status"]["members"]["recreated"] == 1
            await gang.all_running(since=fault)
            slipped = rounds.slipped(restart)
            assert all(life.ran_before(replaced) <= slipped for life in gang.lives() if life.began >= fault)
            await gang.shown_running()
            after = await gang.identities()
            assert [after[index] for index in (0, 2, 3)] == [before[index] for index in (0, 2, 3)]
            assert after[1][2] == first.name


@pytest.mark.long
async def test_member_whose_nodes_maintenance_is_planned_moves_in_the_round_of_another(tmp_path: Path) -> None:
    async with own_cluster("leaving", nodes=2) as cluster, Product.on(cluster, state=tmp_path) as product:
        first, leaving = cluster.nodes
        await product.start(nodes=2)
        async with (
            kube.connect(kubeconfig=first.kubeconfig, deadlines=patience.API) as api,
            Gang.on([first, leaving, first, first], "moved") as gang,
        ):
            before = await gang.identities()
            await plan_maintenance(api, leaving.name)
            fault = await gang.end(0, exit_code=1)
            await gang.gone(1, before[1][0])
            await sentences.held(gang, 0, 2, 3)
            await gang.replace(1, node=first)
            restart = await Rounds(api, gang.template.key).finished(1)
            assert restart["status"]["phase"] == "Done", restart["status"]
            assert restart["status"]["decision"]["reason"] == "MaintenancePlanned"
            assert restart["status"]["members"]["recreated"] == 1
            await gang.all_running(since=fault)
            await gang.shown_running()
            after = await gang.identities()
            assert [after[index] for index in (0, 2, 3)] == [before[index] for index in (0, 2, 3)]
            assert after[1][2] == first.name


@contextlib.asynccontextmanager
async def own_cluster(kind: str, *, nodes: int) -> AsyncIterator[Cluster]:
    """Nodes that the scenario may lose."""
    made = Cluster(NodeLayout.named(f"{kind}-{os.getpid()}"), nodes=nodes, options=node.Options(gpus=4))
    async with made:
        yield made
    assert made.leftovers() == []
    made.forget()


async def plan_maintenance(api: kube.KubeClient, name: str) -> None:
    """Announce a node's maintenance and cordon it, as its operator does (KEP-5683)."""
    planned = {"type": "MaintenancePlanned", "status": "True", "reason": "NewFirmware"}
    await api.patch_status(f"{paths.NODES}/{name}", {"status": {"conditions": [planned]}})
    await api.patch(f"{paths.NODES}/{name}", {"spec": {"unschedulable": True}})
