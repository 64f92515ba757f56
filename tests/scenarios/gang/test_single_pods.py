"""A Restart object for one pod that is in no gang: its agent restarts it, in a round of one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from hack.devnode import node, trainer
from hack.devnode.cluster import Cluster
from hack.devnode.observer import Observer, Seen
from hack.devnode.rounds import Rounds
from hack.devnode.runtime_config import CRIO
from kubemend.common.gangs import GANG, POD, GangKey
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.scenarios import training
from tests.scenarios.gang.product import Product

pytestmark = pytest.mark.devnode

RESTARTS: Final = paths.collection("restarts", namespace="default", group="restarts.kubemend.io", version="v1alpha1")
KEPT: Final = ("uid", "ip", "sandbox", "phase", "init_runs")


@pytest.fixture
def dev(cluster: Cluster) -> node.DevNode:
    return cluster.nodes[0]


@pytest.fixture
async def observer(dev: node.DevNode) -> AsyncIterator[Observer]:
    async with Observer.of(dev.layout) as found:
        yield found


async def ask(api: kube.KubeClient, name: str, *, pod: str, **spec: Any) -> None:
    """Create a Restart object for a pod, as a person would."""
    target = {"apiVersion": "v1", "kind": "Pod", "name": pod}
    await api.create(
        RESTARTS,
        {
            "apiVersion": "restarts.kubemend.io/v1alpha1",
            "kind": "Restart",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"targetRef": target, **spec},
        },
    )


async def ended(api: kube.KubeClient, name: str) -> dict[str, Any]:
    """Watch a Restart object until it has ended; return its status."""
    found = await api.get(f"{RESTARTS}/{name}")
    version = found["metadata"]["resourceVersion"]
    async with asyncio.timeout(training.DEADLINE):
        while not is_complete(found):
            watch = api.watch(RESTARTS, params={"fieldSelector": f"metadata.name={name}"}, resource_version=version)
            async with contextlib.aclosing(watch) as changes:
                async for change in changes:
                    version = change.resource_version or version
                    found = change.object if change.object.get("spec") else found
                    if is_complete(found):
                        break
    status: dict[str, Any] = found["status"]
    return status


def is_complete(restart: dict[str, Any]) -> bool:
    """Return whether it has the condition, as ``kubectl wait`` checks."""
    conditions = restart.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Complete", "True") for each in conditions)


def same(before: Seen, after: Seen) -> bool:
    """Return whether everything but the trainer is unchanged."""
    return all(getattr(before, name) == getattr(after, name) for name in KEPT)


async def trains_again(observer: Observer, name: str, *, restarts: int) -> Seen:
    """Wait until kubelet reports that restart count of the trainer, and it trains."""

    def holds(seen: Seen) -> bool:
        return training.is_training(seen) and seen.restart_counts["trainer"] >= restarts

    return await observer.until(name, holds, timeout=training.DEADLINE, what=f"restart {restarts}")


async def test_restart_of_a_single_pod_restarts_it_in_place(
    product: Product, api: kube.KubeClient, dev: node.DevNode, observer: Observer
) -> None:
    await product.start(nodes=1)
    async with training.pod(dev, observer, "alone") as before:
        for number in (1, 2):
            await ask(api, f"again-{number}", pod="alone", reason="new data")
            status = await ended(api, f"again-{number}")
            assert (status["phase"], status["members"]["running"], status["attempt"]) == ("Done", 1, number), status
            after = await trains_again(observer, "alone", restarts=number)
            assert same(before, after)
            assert after.running["trainer"] != before.running["trainer"]
            assert after.running["shipper"] == before.running["shipper"]
        assert len(await Rounds(api, GangKey("default", POD, "alone")).all()) == 2
        await api.delete(f"{RESTARTS}/again-2")
        await ask(api, "again-2", pod="alone")
        status = await ended(api, "again-2")
        assert status["phase"] == "Done", status
        await trains_again(observer, "alone", restarts=3)


async def test_requested_strategy_applies_to_a_single_pod(
    product: Product, api: kube.KubeClient, dev: node.DevNode, observer: Observer
) -> None:
    await product.start(nodes=1)
    strategy = "reset" if dev.options.runtime.program == CRIO else "rerun"  # which needs containers' configs
    async with training.pod(dev, observer, "rerun-alone") as before:
        await ask(api, "all-of-it", pod="rerun-alone", strategy=strategy)
        assert (await ended(api, "all-of-it"))["phase"] == "Done"
        # Kubelet runs an init container of its own if it relists between the creation and the start of kubemend's.
        after = await observer.until(
            "rerun-alone",
            lambda seen: seen.init_runs in (2, 3),
            timeout=training.DEADLINE,
            what="init containers again",
        )
        assert (after.uid, after.ip) == (before.uid, before.ip)


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("not-opted-in", "NotOptedIn", "kubemend.io/restart: InPlace"),
        ("of-a-gang", "InAGang", "spec.gang {kind: Gang, name: others}"),
        ("never-there", "MemberGone", "there is no pod default/never-there"),
    ],
)
async def test_a_single_pod_that_must_not_be_restarted_is_refused_and_untouched(
    product: Product, api: kube.KubeClient, dev: node.DevNode, observer: Observer, name: str, reason: str, detail: str
) -> None:
    await product.start(nodes=1)
    manifest = trainer.manifest(name, node=dev.name, annotations={} if name == "not-opted-in" else None)
    if name == "of-a-gang":
        manifest["metadata"]["labels"] = {GANG: "others"}
    async with contextlib.AsyncExitStack() as stack:
        before = await stack.enter_async_context(training.made(observer, manifest)) if name != "never-there" else None
        await ask(api, f"refused-{name}", pod=name)
        status = await ended(api, f"refused-{name}")
        assert (status["phase"], status["decision"]["reason"]) == ("Refused", reason)
        assert detail in status["decision"]["detail"]
        if before is not None:
            after = await observer.see(name)
            assert same(before, after)
            assert after.running == before.running


async def test_a_leader_that_dies_in_a_round_of_one_is_followed(
    product: Product, api: kube.KubeClient, dev: node.DevNode, observer: Observer
) -> None:
    await product.start(nodes=1)
    async with training.pod(dev, observer, "orphaned") as before:
        product.pause_agent(0)
        await ask(api, "orphan", pod="orphaned")
        rounds = Rounds(api, GangKey("default", POD, "orphaned"))
        await rounds.until(bool, what="the round")
        await product.kill_controller(1)
        await product.start_controller(number=2)
        product.resume_agent(0)
        assert (await ended(api, "orphan"))["phase"] == "Done"
        assert same(before, await training.restarted(observer, "orphaned", before))
