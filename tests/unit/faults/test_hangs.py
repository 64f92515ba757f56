"""Request a restart for a hang, and withdraw it if the container's heartbeat returns."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults.hangs import Hangs
from kubemend.agent.model import conditions, hangs
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.hangs import Hang, Thread
from kubemend.agent.model.workloads import Allocations, ContainerId
from kubemend.agent.restart import admission
from kubemend.agent.restarts.requests import Request
from tests.environments.node import NodeEnv
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET
from tests.fakes import outside
from tests.unit.restart import builders

ME = ContainerId("c1")
PATIENCE = 60.0


def hang(**changes: Any) -> Hang:
    defaults: dict[str, Any] = {
        "target": builders.TARGET,
        "container_id": ME,
        "file": "/tmp/beat",
        "silent": 61.4,
        "timeout": 60.0,
        "observed_at": NOW,
        "doing": "threads: 1 D; python (7) D in nv_ioctl",
        "threads": (Thread(pid=7, tid=7, name="python", state="D", waits_in="nv_ioctl", stack=("nv_ioctl",)),),
    }
    return Hang(**defaults | changes)


@dataclass
class Restarts:
    """Records requests, and keeps each open until the test releases it."""

    requests: "asyncio.Queue[Request]" = field(default_factory=asyncio.Queue)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, request: Request) -> None:
        self.requests.put_nowait(request)
        await self.released.wait()


@dataclass(kw_only=True)
class Node(NodeEnv):
    """The dependencies of hangs, in memory."""

    restarts: Restarts = field(default_factory=Restarts)
    still: dict[ContainerId, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hangs = Hangs(
            verdict_store=self.verdict_store,
            devices=self.devices,
            holders=self.holders,
            metrics=self.metrics,
        )

    async def still_hung(self, container: ContainerId) -> str:
        return self.still.get(container, "")

    async def request(self) -> Request:
        async with asyncio.timeout(PATIENCE):
            return await self.restarts.requests.get()


@pytest.fixture
async def node(store: Store) -> AsyncIterator[Node]:
    node = Node(store=store)
    run = node.hangs.run(restarts=node.restarts, still_hung=node.still_hung)  # type: ignore[arg-type]
    work = asyncio.create_task(run, name="hangs")
    yield node
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def broken(action: ActionClass) -> Finding:
    return Finding(
        source=Source.KERNEL_LOG,
        kind=FindingKind.XID,
        code="48",
        device=DeviceLocator(pci=outside.GPU.pci),
        action=action,
        observed_at=1.0,
    )


async def test_hang_requests_restart_with_its_evidence(node: Node) -> None:
    node.holders.hold(builders.TARGET)
    node.hangs.hung(hang())
    request = await node.request()
    assert (request.target, request.devices, request.asked) == (builders.TARGET, frozenset({outside.GPU.uuid}), None)
    cause = request.cause()
    assert (cause.code, cause.happened_at, cause.devices_known) == (hangs.CODE, NOW, True)
    assert cause.message == (
        "no heartbeat in /tmp/beat for 61 s (timeout 60 s; threads: 1 D; python (7) D in nv_ioctl)"
    )
    assert node.metric("kubemend_findings_total", source="heartbeat", kind="Heartbeat", code="Hung") == 1


async def test_hang_withdrawn_if_container_recovers(node: Node) -> None:
    node.hangs.hung(hang())
    request = await node.request()
    assert await request.withdrawn() == ""
    node.still[ME] = "it beats again"
    assert await request.withdrawn() == "it beats again"


async def test_hang_on_broken_device_is_not_fixed_by_restart(node: Node) -> None:
    node.holders.hold(builders.TARGET)
    node.hangs.hung(hang())
    request = await node.request()
    assert request.cause().action.leaves_device_usable
    node.verdict_store.apply(broken(ActionClass.RESET_DEVICE), inventory=outside.Devices().inventory)
    assert request.cause().action is ActionClass.RESET_DEVICE


async def test_hang_is_not_affected_by_devices_of_others(node: Node) -> None:
    node.holders.allocations = Allocations(known=True)
    node.verdict_store.apply(broken(ActionClass.RESET_DEVICE), inventory=outside.Devices().inventory)
    node.hangs.hung(hang())
    request = await node.request()
    assert request.devices == frozenset()
    assert request.cause().action.leaves_device_usable


@pytest.mark.parametrize(("action", "known"), [(None, True), (ActionClass.RESET_DEVICE, False)])
async def test_hang_with_unknown_devices_and_broken_device_is_on_hold(
    node: Node, action: ActionClass | None, *, known: bool
) -> None:
    if action is not None:
        node.verdict_store.apply(broken(action), inventory=outside.Devices().inventory)
    node.hangs.hung(hang())
    request = await node.request()
    assert request.devices is None
    assert request.cause().devices_known is known


async def test_hang_repeated_while_handled_is_the_same(node: Node) -> None:
    other = hang(container_id=ContainerId("c2"), target=replace(builders.TARGET, name="other"))
    for each in (hang(), hang(), other):
        node.hangs.hung(each)
    assert {(await node.request()).target.name for _ in range(2)} == {"trainer", "other"}
    assert node.restarts.requests.empty()
    node.restarts.released.set()
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        while node.restarts.requests.empty():
            node.hangs.hung(hang())
            await asyncio.sleep(0.001)


async def test_heartbeat_age_is_shown_while_known(node: Node) -> None:
    labels = {"namespace": "default", "pod": "trainer-0", "container": "trainer"}
    node.hangs.silent_for(builders.TARGET, None)
    node.hangs.silent_for(builders.TARGET, 12.5)
    assert node.metric("kubemend_heartbeat_age_seconds", **labels) == 12.5
    node.hangs.silent_for(builders.TARGET, None)
    assert node.metric("kubemend_heartbeat_age_seconds", **labels) is None


async def test_hang_that_ends_before_first_step_is_not_restarted(env: RestartEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    cause = admission.Cause(code="Hung", message="no heartbeat", happened_at=NOW)

    async def beats_again() -> str:
        return "it beats again"

    request = Request(target=TARGET, cause=lambda: cause, devices=frozenset(), withdrawn=beats_again)
    await env.restarts.submit(request)
    said = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (said.status, said.reason) == (ConditionStatus.FALSE, "CauseGone")
    assert said.message == "trainer not restarted for no heartbeat: it beats again"
    assert await env.pod.running() == {name: [env.pod.old[name]] for name in ("trainer", "logger", "shipper")}
    assert await env.store.unfinished() == ()


async def test_hang_request_on_hold_ends_with_its_cause(env: RestartEnv) -> None:
    cause = admission.Cause(code="Hung", message="no heartbeat", happened_at=NOW, devices_known=False)
    answers = iter(["", "", "it beats again"])

    async def after_a_while() -> str:
        return next(answers)

    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    request = Request(target=TARGET, cause=lambda: cause, devices=None, withdrawn=after_a_while)
    handled = asyncio.create_task(env.restarts.submit(request))
    async with asyncio.timeout(PATIENCE):
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, "DeviceNotProven")
        await handled
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == "CauseGone"
