"""Device taints, against a real API server with the beta API of device taints served."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hack.devnode import apiproxy
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.reporters import taint_rules
from kubemend.agent.reporters.device_taints import GROUP, DeviceTaintReporter, Intervals
from kubemend.agent.settings import Settings
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started

RULES = paths.collection("devicetaintrules", group="resource.k8s.io", version="v1beta2")
SLICES = paths.collection("resourceslices", group="resource.k8s.io")
FAST = Intervals(resync=0.05, served=0.05, spacing=0.0)
SLOW = Intervals(resync=3600.0, served=3600.0, spacing=0.0)


def verdict(device: str = "GPU-a", health: Health = Health.UNHEALTHY, *, reason: str = "Xid79") -> Verdict:
    return Verdict(device, health, ActionClass.REBOOT_NODE, reason, "")


def slice_of(name: str = "gpu-0", *, uuid: str = "GPU-a", node: str) -> dict[str, Any]:
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


class Env:
    """A reporter that runs, what it reported, and a client of the same server."""

    def __init__(
        self, tenant: Tenant, api: client.KubeClient, *, intervals: Intervals, if_stable: bool = False
    ) -> None:
        self.tenant = tenant
        self.server = tenant.server
        self.node = tenant.node
        self.api = api
        self.reports: list[ComponentStatus] = []
        self.turns: asyncio.Queue[ComponentState] = asyncio.Queue()
        self.reporter = DeviceTaintReporter(
            api=api,
            node_name=tenant.node,
            report=self._reported,
            intervals=intervals,
            backoff=aio.Backoff(first=0.01, limit=0.05),
            if_stable=if_stable,
        )

    def _reported(self, status: ComponentStatus) -> None:
        self.reports.append(status)
        self.turns.put_nowait(status.state)

    async def until(self, state: ComponentState) -> None:
        """Wait for a turn that ends like this."""
        while await self.turns.get() is not state:
            pass

    async def rules(self) -> list[dict[str, Any]]:
        """Return the rules that the agent of this node has created."""
        return (await self.api.list(RULES, params={"labelSelector": taint_rules.selector(self.node)})).items

    def switch_off(self) -> list[apiproxy.Rule]:
        """Have the server answer as one that does not serve the API; the rules end that."""
        return [
            self.server.fail_next(10_000, status=404, path=f"/apis/{GROUP}/v1{beta}") for beta in ("beta2", "alpha3")
        ]


@contextlib.asynccontextmanager
async def running(
    tenant: Tenant, *, intervals: Intervals, with_api: bool = True, if_stable: bool = False
) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        env = Env(tenant, api, intervals=intervals, if_stable=if_stable)
        await api.create(paths.NODES, {"metadata": {"name": env.node}})
        await api.create(SLICES, slice_of(node=env.node))
        if not with_api:
            env.switch_off()
        async with started(env.reporter):
            yield env


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with running(tenant, intervals=SLOW) as made:
        yield made


async def test_unhealthy_device_is_tainted_until_it_is_healthy_again(env: Env) -> None:
    env.reporter.set([verdict()])
    await env.until(ComponentState.READY)
    (rule,) = await env.rules()
    assert rule["spec"]["taint"].pop("timeAdded")
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": env.node, "device": "gpu-0"},
        "taint": {"key": "kubemend.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"},
    }
    node = await env.api.get(f"{paths.NODES}/{env.node}")
    assert [owner["uid"] for owner in rule["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]
    env.reporter.set([verdict(reason="Xid48")])
    await env.until(ComponentState.READY)
    assert [rule["spec"]["taint"]["value"] for rule in await env.rules()] == ["Xid48"]
    env.reporter.set([verdict(health=Health.UNKNOWN)])
    await env.until(ComponentState.READY)
    assert len(await env.rules()) == 1
    env.reporter.set([verdict(health=Health.HEALTHY)])
    await env.until(ComponentState.READY)
    assert await env.rules() == []


async def test_rule_of_a_previous_agent_is_removed(env: Env) -> None:
    env.reporter.set([verdict()])
    await env.until(ComponentState.READY)
    later = Env(env.tenant, env.api, intervals=SLOW)
    async with started(later.reporter):
        later.reporter.set([verdict(health=Health.HEALTHY)])
        await later.until(ComponentState.READY)
        assert await env.rules() == []


async def test_rules_of_others_and_of_other_nodes_are_not_touched(env: Env) -> None:
    theirs = {"deviceSelector": {"device": env.node}, "taint": {"key": "example.com/x", "effect": "None"}}
    labels = {"app.kubernetes.io/managed-by": "kubemend", "kubemend.io/node": f"{env.node}-2"}
    for name, labelled in (("theirs", {}), ("elsewhere", labels)):
        body = {"metadata": {"name": f"{env.node}-{name}", "labels": labelled}, "spec": theirs}
        await env.api.create(RULES, body)
    for health in (Health.UNHEALTHY, Health.HEALTHY):
        env.reporter.set([verdict(health=health)])
        await env.until(ComponentState.READY)
    for name in ("theirs", "elsewhere"):
        await env.api.delete(f"{RULES}/{env.node}-{name}")


async def test_device_that_is_published_later_is_tainted_then(tenant: Tenant) -> None:
    async with running(tenant, intervals=FAST) as env:
        env.reporter.set([verdict("GPU-b")])
        await env.until(ComponentState.READY)
        assert await env.rules() == []
        await env.api.create(SLICES, slice_of("gpu-1", uuid="GPU-b", node=env.node))
        while not await env.rules():
            await env.until(ComponentState.READY)


async def test_slices_of_other_nodes_do_not_count(env: Env) -> None:
    await env.api.create(SLICES, slice_of("gpu-0", uuid="GPU-b", node=f"{env.node}-2"))
    env.reporter.set([verdict("GPU-b")])
    await env.until(ComponentState.READY)
    assert await env.rules() == []


async def test_internal_error_is_reported_and_tried_again(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(taint_rules, "published", None)
        env.reporter.set([verdict()])
        assert await env.turns.get() is ComponentState.IDLE
        assert await env.turns.get() is ComponentState.DEGRADED
        assert env.reports[-1].message.startswith("internal error (TypeError in ")
    await env.until(ComponentState.READY)
    assert len(await env.rules()) == 1


async def test_cluster_without_the_api_is_idle_until_it_is_served(tenant: Tenant) -> None:
    async with running(tenant, intervals=FAST, with_api=False) as env:
        env.reporter.set([verdict()])
        await env.until(ComponentState.IDLE)
        await env.until(ComponentState.IDLE)
        assert "serves no DeviceTaintRules" in env.reports[-1].message
        env.server.rules.clear()
        while not (env.reports[-1].state is ComponentState.READY and await env.rules()):
            await env.turns.get()


async def test_healthy_node_costs_nothing_after_the_first_read(env: Env) -> None:
    env.reporter.set([verdict(health=Health.HEALTHY)])
    await env.until(ComponentState.READY)
    env.server.fail_next(1, status=500, path="resource.k8s.io")
    for health in (Health.HEALTHY, Health.DEGRADED, Health.HEALTHY):
        env.reporter.set([verdict(health=health)])
        await env.api.get("/version")
    assert env.turns.empty()
    for health in (Health.UNKNOWN, Health.HEALTHY):
        env.reporter.set([verdict(health=health)])
        await env.until(ComponentState.READY)
    assert env.server.hits == 0


async def test_missing_permission_is_reported_with_the_needed_rule(env: Env) -> None:
    env.server.fail_next(1, status=403, method="POST", path="devicetaintrules")
    env.reporter.set([verdict()])
    await env.until(ComponentState.DEGRADED)
    assert 'allow verb "create" on resource "devicetaintrules.resource.k8s.io"' in env.reports[-1].hint
    await env.until(ComponentState.READY)
    assert len(await env.rules()) == 1


async def test_outage_is_waited_out(env: Env) -> None:
    await env.server.stop()
    env.reporter.set([verdict()])
    await env.until(ComponentState.DEGRADED)
    await env.server.start()
    await env.until(ComponentState.READY)
    assert len(await env.rules()) == 1


async def test_disabled_api_is_idle(env: Env) -> None:
    env.reporter.set([verdict()])
    await env.until(ComponentState.READY)
    env.server.fail_next(1, status=404, path="/devicetaintrules")
    env.server.fail_next(1, status=404, path="/apis/resource.k8s.io")  # then it is discovered again
    env.reporter.set([verdict(reason="Xid48")])
    await env.until(ComponentState.IDLE)
    assert "serves no DeviceTaintRules" in env.reports[-1].message


async def test_beta_api_is_not_used_by_default(tenant: Tenant) -> None:
    async with running(tenant, intervals=SLOW, if_stable=True) as env:
        env.reporter.set([verdict()])
        for _ in ("no verdicts yet", "not served"):
            await env.until(ComponentState.IDLE)
        assert "serves no DeviceTaintRules in a stable version" in env.reports[-1].message
        assert "--device-taints" in env.reports[-1].hint
        assert await env.rules() == []


class StableApi:
    """An API server that serves DeviceTaintRules as Kubernetes 1.37 does, in three versions."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.node_uid = "uid-1"
        self.answers_creation = True
        self.forbids = ""
        self.rules: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.created: list[tuple[str, str]] = []
        self.owners: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        if path == f"{paths.NODES}/node-1":
            return {"metadata": {"uid": self.node_uid}}
        if path == f"/apis/{GROUP}":
            return {"versions": [{"version": version} for version in ("v1beta2", "v1", "v1alpha3")]}
        return {"resources": [{"name": "devicetaintrules"}, {"name": "resourceslices"}]}

    async def list(self, path: str, **_: Any) -> Any:
        if self.refuses:
            by_rbac = 'forbidden: User "agent" cannot list resource "devicetaintrules"'
            raise errors.ForbiddenError("list DeviceTaintRules", hint="allow it", server_message=by_rbac)
        slices = [slice_of(node="node-1"), slice_of("gpu-1", uuid="GPU-b", node="node-1")]
        return SimpleNamespace(items=slices if "slices" in path else self.rules)

    async def delete(self, path: str) -> None:
        self.deleted.append(path)
        self.rules = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["spec"]["deviceSelector"]["device"] == self.forbids:
            raise errors.ForbiddenError("create DeviceTaintRules", hint="a policy refuses it")
        self.created.append((path, body["apiVersion"]))
        self.owners += [owner["uid"] for owner in body["metadata"]["ownerReferences"]]
        if not self.answers_creation:
            self.rules = [body]
            raise errors.ApiUnavailableError("create DeviceTaintRules")
        return body


def on_stable(api: StableApi) -> tuple[DeviceTaintReporter, "asyncio.Queue[ComponentStatus]"]:
    reports: asyncio.Queue[ComponentStatus] = asyncio.Queue()
    fake: Any = api
    reporter = DeviceTaintReporter(
        api=fake, node_name="node-1", report=reports.put_nowait, intervals=SLOW, if_stable=True
    )
    return reporter, reports


async def test_stable_api_is_used_by_default_whatever_the_server_prefers() -> None:
    api = StableApi()
    reporter, reports = on_stable(api)
    async with started(reporter):
        reporter.set([verdict()])
        assert [(await reports.get()).state for _ in range(2)] == [ComponentState.IDLE, ComponentState.READY]
    assert api.created == [(f"/apis/{GROUP}/v1/devicetaintrules", f"{GROUP}/v1")]


async def test_rule_whose_creation_was_not_answered_is_removed() -> None:
    api = StableApi()
    api.answers_creation = False
    reporter, reports = on_stable(api)
    async with started(reporter):
        await reports.get()
        reporter.set([verdict()])
        assert (await reports.get()).state is ComponentState.DEGRADED
        reporter.set([verdict(health=Health.HEALTHY)])
        assert (await reports.get()).state is ComponentState.READY
    assert len(api.deleted) == 1


async def test_rule_belongs_to_the_node_object_that_exists_now() -> None:
    """The garbage collector removes a rule whose owner has been replaced by another node of the same name."""
    api = StableApi()
    reporter, reports = on_stable(api)
    async with started(reporter):
        await reports.get()
        for uid, reason in (("uid-1", "Xid79"), ("uid-2", "Xid48")):
            api.node_uid = uid
            reporter.set([verdict(reason=reason)])
            assert (await reports.get()).state is ComponentState.READY
    assert api.owners == ["uid-1", "uid-2"]


async def test_rule_that_is_refused_stops_no_other_and_is_tried_again() -> None:
    api = StableApi()
    reporter, reports = on_stable(api)
    async with started(reporter):
        await reports.get()
        for refused in ("gpu-0", "gpu-1"):
            api.created.clear()
            api.forbids = refused
            reporter.set([verdict(), verdict("GPU-b")])
            status = await reports.get()
            assert (status.state, status.hint) == (ComponentState.DEGRADED, "a policy refuses it")
            assert len(api.created) == 1
        api.forbids = ""
        assert (await reports.get()).state is ComponentState.READY


async def test_installation_without_the_rights_is_idle_by_default() -> None:
    reporter, reports = on_stable(StableApi(refuses=True))
    async with started(reporter):
        reporter.set([verdict()])
        waiting, refused = [await reports.get() for _ in range(2)]
    assert (waiting.state, refused.state) == (ComponentState.IDLE, ComponentState.IDLE)
    assert "DeviceTaintRules" in refused.message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, True),
        ({"dry_run": True}, False),
        ({"device_taints": False}, False),
        ({"device_taints": True, "dry_run": True}, True),
    ],
)
def test_devices_are_tainted_unless_the_agent_only_reports(flags: dict[str, bool], expected: bool) -> None:
    assert Settings(**flags).taints_devices() is expected  # type: ignore[arg-type]
