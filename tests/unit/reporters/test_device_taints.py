"""Device taints, against the API stand-in with the two kinds of resource.k8s.io defined as custom resources."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.actions import ActionClass
from agent.model.verdicts import Health, Verdict
from agent.reporters.device_taints import DeviceTaintReporter, Pace
from common import aio
from common.kube import client, paths
from common.parts import PartState, PartStatus
from hack.devnode.api import standin
from tests.unit.reporters.running import connected, started

NODE = "node-1"
RULES = paths.collection("devicetaintrules", group="resource.k8s.io", version="v1beta2")
SLICES = paths.collection("resourceslices", group="resource.k8s.io")
FAST = Pace(resync=0.05, served=0.05)
SLOW = Pace(resync=3600.0, served=3600.0)


def verdict(device: str = "GPU-a", health: Health = Health.UNHEALTHY, *, reason: str = "Xid79") -> Verdict:
    return Verdict(device, health, ActionClass.REBOOT_NODE, reason, "")


def slice_of(name: str = "gpu-0", *, uuid: str = "GPU-a", node: str = NODE) -> dict[str, Any]:
    device = {"name": name, "attributes": {"uuid": {"string": uuid}}}
    return {
        "metadata": {"name": f"{node}-{name}"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": [device],
        },
    }


class Bench:
    """A reporter that runs, what it reported, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, *, pace: Pace) -> None:
        self.server = server
        self.api = api
        self.reports: list[PartStatus] = []
        self.turns: asyncio.Queue[PartState] = asyncio.Queue()
        self.reporter = DeviceTaintReporter(
            api=api,
            node_name=NODE,
            report=self._told,
            pace=pace,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )

    def _told(self, status: PartStatus) -> None:
        self.reports.append(status)
        self.turns.put_nowait(status.state)

    async def until(self, state: PartState) -> None:
        """Wait for a turn that ends like this."""
        while await self.turns.get() is not state:
            pass

    async def rules(self) -> list[dict[str, Any]]:
        return (await self.api.list(RULES)).items

    async def define(self) -> None:
        """Give the server the two kinds."""
        for plural, kind, version in (
            ("devicetaintrules", "DeviceTaintRule", "v1beta2"),
            ("resourceslices", "ResourceSlice", "v1"),
        ):
            names = {"plural": plural, "singular": kind.lower(), "kind": kind}
            served = {"name": version, "served": True, "storage": True, "schema": {}}
            spec = {"group": "resource.k8s.io", "scope": "Cluster", "names": names, "versions": [served]}
            body = {"metadata": {"name": f"{plural}.resource.k8s.io"}, "spec": spec}
            await self.api.create(paths.collection("customresourcedefinitions", group="apiextensions.k8s.io"), body)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, *, pace: Pace, with_api: bool = True) -> AsyncIterator[Bench]:
    async with connected(tmp_path) as (server, api):
        bench = Bench(server, api, pace=pace)
        await api.create(paths.NODES, {"metadata": {"name": NODE}})
        if with_api:
            await bench.define()
            await api.create(SLICES, slice_of())
        async with started(bench.reporter):
            yield bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, pace=SLOW) as made:
        yield made


async def test_unhealthy_device_is_tainted_until_it_is_healthy_again(bench: Bench) -> None:
    bench.reporter.set([verdict()])
    await bench.until(PartState.READY)
    (rule,) = await bench.rules()
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"},
        "taint": {"key": "kubemend.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"},
    }
    node = await bench.api.get(f"{paths.NODES}/{NODE}")
    assert [owner["uid"] for owner in rule["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]
    bench.reporter.set([verdict(reason="Xid48")])
    await bench.until(PartState.READY)
    assert [rule["spec"]["taint"]["value"] for rule in await bench.rules()] == ["Xid48"]
    bench.reporter.set([verdict(health=Health.UNKNOWN)])
    await bench.until(PartState.READY)
    assert len(await bench.rules()) == 1
    bench.reporter.set([verdict(health=Health.HEALTHY)])
    await bench.until(PartState.READY)
    assert await bench.rules() == []


async def test_rule_that_an_earlier_agent_left_is_taken_away(bench: Bench) -> None:
    bench.reporter.set([verdict()])
    await bench.until(PartState.READY)
    later = Bench(bench.server, bench.api, pace=SLOW)
    async with started(later.reporter):
        later.reporter.set([verdict(health=Health.HEALTHY)])
        await later.until(PartState.READY)
        assert await bench.rules() == []


async def test_rules_of_others_and_of_other_nodes_are_not_touched(bench: Bench) -> None:
    theirs = {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "example.com/x", "effect": "None"}}
    await bench.api.create(RULES, {"metadata": {"name": "theirs"}, "spec": theirs})
    labels = {"app.kubernetes.io/managed-by": "kubemend", "kubemend.io/node": "node-2"}
    await bench.api.create(RULES, {"metadata": {"name": "elsewhere", "labels": labels}, "spec": theirs})
    for health in (Health.UNHEALTHY, Health.HEALTHY):
        bench.reporter.set([verdict(health=health)])
        await bench.until(PartState.READY)
    assert sorted(rule["metadata"]["name"] for rule in await bench.rules()) == ["elsewhere", "theirs"]


async def test_device_that_is_published_later_is_tainted_then(tmp_path: Path) -> None:
    async with running(tmp_path, pace=FAST) as bench:
        bench.reporter.set([verdict("GPU-b")])
        await bench.until(PartState.READY)
        assert await bench.rules() == []
        await bench.api.create(SLICES, slice_of("gpu-1", uuid="GPU-b"))
        while not await bench.rules():
            await bench.until(PartState.READY)


async def test_slices_of_other_nodes_do_not_count(bench: Bench) -> None:
    await bench.api.create(SLICES, slice_of("gpu-0", uuid="GPU-b", node="node-2"))
    bench.reporter.set([verdict("GPU-b")])
    await bench.until(PartState.READY)
    assert await bench.rules() == []


async def test_cluster_without_the_api_is_idle_and_picks_it_up(tmp_path: Path) -> None:
    async with running(tmp_path, pace=FAST, with_api=False) as bench:
        bench.reporter.set([verdict()])
        await bench.until(PartState.IDLE)
        await bench.until(PartState.IDLE)
        assert "serves no DeviceTaintRules" in bench.reports[-1].message
        await bench.define()
        await bench.api.create(SLICES, slice_of())
        while not (bench.reports[-1].state is PartState.READY and await bench.rules()):
            await bench.turns.get()


async def test_healthy_node_costs_nothing_after_the_first_look(bench: Bench) -> None:
    bench.reporter.set([verdict(health=Health.HEALTHY)])
    await bench.until(PartState.READY)
    bench.server.handler.faults.fail_next(1, status=500, path="resource.k8s.io")
    for _ in range(3):
        bench.reporter.set([verdict(health=Health.HEALTHY)])
        await bench.api.get("/version")
    assert bench.server.handler.faults.hits == 0
    assert bench.turns.empty()


async def test_lacking_permission_is_said_with_the_rule_that_is_needed(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(1, status=403, method="POST", path="devicetaintrules")
    bench.reporter.set([verdict()])
    await bench.until(PartState.DEGRADED)
    assert 'allow verb "create" on resource "devicetaintrules.resource.k8s.io"' in bench.reports[-1].mend
    await bench.until(PartState.READY)
    assert len(await bench.rules()) == 1


async def test_outage_is_waited_out(bench: Bench) -> None:
    await bench.server.stop()
    bench.reporter.set([verdict()])
    await bench.until(PartState.DEGRADED)
    await bench.server.start()
    await bench.until(PartState.READY)
    assert len(await bench.rules()) == 1


async def test_api_that_has_been_switched_off_is_idle(bench: Bench) -> None:
    bench.reporter.set([verdict()])
    await bench.until(PartState.READY)
    bench.server.handler.faults.fail_next(1, status=404, path="/devicetaintrules")
    bench.server.handler.faults.fail_next(1, status=404, path="/apis/resource.k8s.io")  # then it is looked for anew
    bench.reporter.set([verdict(reason="Xid48")])
    await bench.until(PartState.IDLE)
    assert "serves no DeviceTaintRules" in bench.reports[-1].message
