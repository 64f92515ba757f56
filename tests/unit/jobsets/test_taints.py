"""Tainted nodes, with any other taints and labels, and any number of refusals."""

import asyncio
from collections import Counter
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from kubemend.common.kube import client, errors, timestamps
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.jobsets.taints import Taints
from tests import eventually
from tests.unit.reporters.running import started

TAINT: Final = {"key": device_taints.TAINT, "effect": device_taints.EFFECT, "timeAdded": "2026-01-02T00:00:00Z"}
LATER: Final = "2026-01-02T01:00:00Z"


class Nodes(client.KubeClient):
    """An API server of nodes only.

    ``busy``: it answers each patch with a conflict. ``full``: how many patches it refuses because it has too many.
    """

    def __init__(self, *names: str, busy: bool = False, full: int = 0) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())
        self.busy = busy
        self.full = full
        self.nodes = {name: node(name) for name in names}
        self.asked: Counter[str] = Counter()
        self.patched: Counter[str] = Counter()

    async def list(self, path: str, *, params: client.Params | None = None, **_: Any) -> client.Listing:
        await asyncio.sleep(0)
        name = str((params or {})["fieldSelector"]).removeprefix("metadata.name=")
        self.asked[name] += 1
        return client.Listing([self.nodes[name]], resource_version="1")

    async def patch(self, path: str, body: Any, *, content_type: client.Patch = client.Patch.STRATEGIC) -> Json:
        if self.busy:
            raise errors.ConflictError("another client changes it")
        if self.full:
            self.full -= 1
            raise errors.ApiUnavailableError("too many requests")
        name = path.rpartition("/")[2]
        self.patched[name] += 1
        self.nodes[name] = {**self.nodes[name], "spec": body["spec"]}
        return self.nodes[name]

    def heard(self, name: str, time: str) -> None:
        """Have a tainted node's agent find all devices healthy."""
        condition = {"type": device_taints.DEVICES_HEALTHY, "status": "True", "lastHeartbeatTime": time}
        self.nodes[name] = {**node(name), "spec": {"taints": [TAINT]}, "status": {"conditions": [condition]}}


def node(name: str) -> Json:
    return {"metadata": {"name": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "10000-01-01T00:59:59Z"])
async def test_invalid_taint_time_warns_once_and_does_not_block_others(time: str) -> None:
    api = Nodes("node-a", "node-b")
    for name, healthy_at in (("node-a", time), ("node-b", LATER)):
        api.heard(name, healthy_at)
    taints = Taints(api=api, tainted=lambda: ["node-a", "node-b"], period=0.01)
    with capture_logs() as logs:
        async with started(taints):
            await eventually.true(lambda: api.patched["node-b"] == 1 and api.asked["node-a"] >= 3)
            assert api.patched["node-a"] == 0
            api.heard("node-a", LATER)
            await eventually.true(lambda: api.patched["node-a"] == 1)
    (logged,) = [each for each in logs if each["event"] == "node.invalid"]
    assert logged["node"] == "node-a"


async def test_conflicting_node_is_retried_with_pause() -> None:
    api = Nodes("node-a", busy=True)
    taints = Taints(api=api, tainted=tuple)
    taints.fault("node-a", code="Xid79", pod="uid-1")
    async with started(taints):
        for _ in range(2000):
            await asyncio.sleep(0)
        assert 0 < api.asked["node-a"] < 100
        api.busy = False
        await eventually.true(lambda: api.patched["node-a"] == 1)


async def test_node_is_tainted_soon_after_the_api_server_was_too_busy() -> None:
    """The pod's replacement is scheduled within seconds, and the next reconcile would come too late."""
    api = Nodes("node-a", full=1)
    taints = Taints(api=api, tainted=tuple, period=3600.0)
    taints.fault("node-a", code="Xid79", pod="uid-1")
    async with started(taints):
        await eventually.true(lambda: api.patched["node-a"] == 1)


async def test_internal_error_at_node_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Nodes("node-a", "node-b")
    for name in ("node-a", "node-b"):
        api.heard(name, LATER)
    read = device_taints.node

    def understood(obj: Any) -> device_taints.NodeState:
        if obj["metadata"]["name"] == "node-a":
            raise IndexError
        return read(obj)

    monkeypatch.setattr(device_taints, "node", understood)
    taints = Taints(api=api, tainted=lambda: ["node-a", "node-b"], period=0.01)
    async with started(taints):
        await eventually.true(lambda: api.patched["node-b"] == 1 and api.asked["node-a"] >= 3)


async def test_report_of_a_node_whose_clock_is_ahead_is_not_newer_than_the_fault() -> None:
    api = Nodes("node-a")
    api.heard("node-a", LATER)
    del api.nodes["node-a"]["spec"]
    clock = [float(timestamps.unix(TAINT["timeAdded"]))]
    taints = Taints(api=api, tainted=lambda: ["node-a"], clock=lambda: clock[0], period=0.01)
    taints.fault("node-a", code="Xid79", pod="uid-1")
    async with started(taints):
        await eventually.true(lambda: api.patched["node-a"] == 1)
        clock[0] += device_taints.SETTLED
        await eventually.true(lambda: api.patched["node-a"] == 2)
    assert api.nodes["node-a"]["spec"] == {"taints": []}
