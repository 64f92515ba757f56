"""GPU faults on a node with real containers: the restarted containers, the method, and those left alone."""

import asyncio
import signal
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from tests import eventually
from tests.scenarios import training

pytestmark = pytest.mark.devnode


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    """Verdicts of other scenarios must not affect this one: they outlive agents, as they should."""
    return f"--state-dir={tmp_path / 'state'}"


async def test_an_xid_restarts_the_container_of_its_process_under_any_restart_policy(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async def faults(policy: str) -> None:
        name = f"policy-{policy.lower()}"
        async with training.pod(dev, observer, name, restart_policy=policy) as before:
            await training.xid(dev, observer, name, 31)
            after = await training.restarted(observer, name, before)
            assert "Xid 31" in after.condition("InPlaceRestart")["message"]
            log = await training.log_of(observer, name, after)
            assert "restart 1 Xid31" in log or not training.is_ours(after)
            assert "resumed from step 0," not in log
            healthy = await training.healthy(observer, name)
            assert healthy.condition("DeviceFailure")["status"] == "False"

    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            for policy in ("Always", "OnFailure", "Never"):
                pods.create_task(faults(policy))


async def test_three_faults_in_a_row_are_three_restarts_without_backoff(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "in-a-row") as before:
        await readyz.until_ready(agent)
        seen = before
        for _ in range(3):
            await training.xid(dev, observer, "in-a-row", 31)
            seen = await training.restarted(observer, "in-a-row", seen)


async def test_pod_without_opt_in_gets_a_condition_but_no_restart(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "observed", annotations={}) as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "observed", 31)
        reported = await observer.until(
            "observed",
            lambda s: s.condition("DevicesHealthy").get("reason") == "Xid31",
            timeout=training.DEADLINE,
            what="the condition",
        )
        later = await training.trains_on(observer, "observed", reported)
        assert later.running == before.running
        assert later.condition("InPlaceRestart") == {}


async def test_gpu_off_the_bus_moves_the_pod_without_a_restart(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "off-bus") as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "off-bus", 79)
        reported = await observer.until(
            "off-bus",
            lambda s: s.condition("DeviceFailure").get("status") == "True",
            timeout=training.DEADLINE,
            what="DeviceFailure",
        )
        assert reported.condition("DevicesHealthy")["reason"] == "Xid79"
        await training.trains_on(observer, "off-bus", reported)
        await training.xid(dev, observer, "off-bus", 31)  # a later, milder fault does not change that
        refused = await observer.until(
            "off-bus",
            lambda s: s.condition("InPlaceRestart").get("reason") == "DeviceNotUsable",
            timeout=training.DEADLINE,
            what="the refusal",
        )
        later = await training.trains_on(observer, "off-bus", refused)
        assert later.running == before.running


async def test_other_containers_and_pods_are_not_touched(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    async with (
        dev.agent(own_state) as agent,
        training.pod(dev, observer, "hit") as before,
        training.pod(dev, observer, "bystander") as bystander,
    ):
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "hit", 31)
        await training.restarted(observer, "hit", before)
        assert (await observer.see("bystander")).running == bystander.running


async def test_an_agent_killed_while_faults_come_in_loses_none(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with training.pod(dev, observer, "killed", restart_policy="Never") as before:
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            await training.xid(dev, observer, "killed", 31)
            agent.child.signal(signal.SIGKILL)  # anywhere between reading the line and the end of the swap
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            after = await observer.until(
                "killed",
                lambda s: (
                    training.is_training(s)
                    and s.running["trainer"] == (s.container_ids["trainer"],)
                    and s.running["trainer"] != before.running["trainer"]
                ),
                timeout=training.DEADLINE,
                what="the restart that the killed agent had begun or not",
            )
            assert after.restart_counts["trainer"] >= 1
            await training.trains_on(observer, "killed", after)


async def test_verdicts_outlive_the_agent(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    async with training.pod(dev, observer, "outlive", annotations={}):
        gpu = dev.gpu_uuids[await dev.first_gpu("outlive")]
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            await training.xid(dev, observer, "outlive", 95)
            await observer.until(
                "outlive",
                lambda s: s.condition("DeviceFailure").get("reason") == "Xid95",
                timeout=training.DEADLINE,
                what="Xid95",
            )
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)

            async def is_known() -> bool:
                return await training.metric(agent, "kubemend_device_verdict", device=gpu, verdict="Unhealthy") == 1.0

            await eventually.true(is_known)
            assert (await observer.see("outlive")).condition("DeviceFailure")["reason"] == "Xid95"
