"""The agent of a node is replaced while a member of its node still has its grace period."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import pytest

from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import Shape
from hack.devnode.gangs import Gang
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from tests.scenarios.gang import sentences
from tests.scenarios.gang.product import PATIENT, Product

pytestmark = pytest.mark.devnode

PATIENT_PAIR = Shape(members=2, restart_policy="Always", annotations={"kubemend.io/grace-period": "600"})


@contextlib.contextmanager
def does_not_end(pid: int) -> Iterator[None]:
    """Have a process leave SIGTERM unanswered for the length of the block; it answers afterwards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
async def test_an_agent_that_is_replaced_while_a_member_ends_is_followed_by_one_that_ends_the_round(
    cluster: Cluster, product: Product, api: kube.KubeClient, number: signal.Signals
) -> None:
    """Run in the gang's second round: the containers that the first round released have a mark with the release."""
    await product.start_controller(*PATIENT)
    await product.start_agent(0, "--shutdown-timeout=3600s")
    async with Gang.on(cluster.nodes[:1], f"upgraded-{number.name.lower()}", shape=PATIENT_PAIR) as gang:
        rounds = Rounds(api, gang.template.key)
        before = await gang.identities()
        fault = await gang.end(0, exit_code=1)
        first = await rounds.finished(1)
        assert sentences.is_done(first, members=2), json.dumps(first["status"], indent=2)
        await gang.all_running(since=fault)
        await gang.shown_running()
        with does_not_end(await gang.pid(1)):
            fault = await gang.end(0, exit_code=1)
            await sentences.held(gang, 0)
            await product.end_agent(0, number)
            await product.start_agent(0)
        second = await rounds.finished(2)
        assert sentences.is_done(second, members=2), json.dumps(second["status"], indent=2)
        await gang.all_running(since=fault)
        await gang.shown_running()
        assert sentences.proved(gang, second, since=fault), gang.barrier(since=fault)
        assert await sentences.one_each(gang)
        assert await gang.identities() == before
        assert len(await rounds.all()) == 2, "the upgrade began no round of its own"
