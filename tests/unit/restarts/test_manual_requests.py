"""Gather the facts for a manual restart before it goes to the scheduler."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubemend.agent.actuator.progress import Decided, Event
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocation, Allocations, ContainerRef, PluginDevice
from kubemend.agent.restart.admission import Verb
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.manual_requests import ManualRestarts, NoSuchPodError, PodsUnknownError
from kubemend.agent.restarts.requests import Request
from tests.environments.node import NodeEnv
from tests.fakes import outside
from tests.unit.restart import builders

NOW = 1000.0
SECONDS = 60.0
TRAINER = builders.TARGET
OTHER = ContainerRef(builders.POD, "logger")


@dataclass
class RequestRecorder:
    """Records requests."""

    requests: list[Request] = field(default_factory=list)

    async def submit(self, request: Request) -> None:
        self.requests.append(request)


@dataclass
class ProgressRecorder:
    """Records the progress."""

    decisions: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)

    def notify(self, event: Event) -> None:
        assert isinstance(event, Decided)
        self.decisions.put_nowait((event.decision.verb, event.decision.reason, event.decision.detail))


@dataclass(kw_only=True)
class Env(NodeEnv):
    pods: outside.Pods = field(default_factory=lambda: outside.Pods(builders.pod()))
    engine: RequestRecorder = field(default_factory=RequestRecorder)
    progress: ProgressRecorder = field(default_factory=ProgressRecorder)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests = ManualRestarts(
            verdict_store=self.verdict_store,
            pods=self.pods,
            devices=self.devices,
            holders=self.holders,
            access=self.access,
            lacking=lambda: "no socket",
            now=lambda: NOW,
            ask_again=0.01,
        )

    def break_gpu(self, action: ActionClass = ActionClass.RESET_DEVICE) -> None:
        where = DeviceLocator(uuid=outside.GPU.uuid)
        found = Finding(
            source=Source.NVML, kind=FindingKind.XID, code="48", device=where, action=action, observed_at=NOW
        )
        self.verdict_store.apply(found, inventory=self.devices.inventory)

    async def ask(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.requests.carry_out(RestartOverrides(), target=TRAINER, requester="uid 0", followed=self.progress)


@pytest.fixture
def env(store: Store) -> Env:
    return Env(store=store)


async def test_manual_request_devices_are_those_held(env: Env) -> None:
    env.find_runtime(env.engine)
    env.holders.hold(TRAINER)
    await env.ask()
    (request,) = env.engine.requests
    assert request.devices == frozenset({outside.GPU.uuid})
    assert (request.cause().action, request.cause().happened_at) == (ActionClass.NONE, NOW)


async def test_manual_request_cause_includes_broken_device(env: Env) -> None:
    env.find_runtime(env.engine)
    env.holders.hold(TRAINER)
    env.break_gpu()
    await env.ask()
    assert env.engine.requests[0].cause().action is ActionClass.RESET_DEVICE


async def test_manual_request_ignores_devices_of_others(env: Env) -> None:
    env.find_runtime(env.engine)
    env.holders.hold(OTHER)
    env.break_gpu()
    await env.ask()
    (request,) = env.engine.requests
    assert (request.devices, request.cause().action) == (frozenset(), ActionClass.NONE)


async def test_manual_request_waits_for_the_watch_to_report_that_the_pod_runs(env: Env) -> None:
    env.find_runtime(env.engine)
    await env.pods.put(builders.pod(phase="Pending"))
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(env.ask())
        await env.pods.waited.wait()
        assert not asking.done()
        await env.pods.put(builders.pod())
    assert len(env.engine.requests) == 1


async def test_manual_request_for_a_pod_that_stays_pending_goes_to_the_engine_which_refuses_it(env: Env) -> None:
    env.requests = ManualRestarts(
        verdict_store=env.verdict_store,
        pods=env.pods,
        devices=env.devices,
        holders=env.holders,
        access=env.access,
        lacking=str,
        watch_delay=0.01,
    )
    env.find_runtime(env.engine)
    await env.pods.put(builders.pod(phase="Pending"))
    await env.ask()
    assert len(env.engine.requests) == 1


async def test_manual_request_on_hold_follows_changed_verdict(env: Env) -> None:
    env.find_runtime(env.engine)
    env.holders.hold(TRAINER)
    await env.ask()
    env.break_gpu(ActionClass.REBOOT_NODE)
    assert env.engine.requests[0].cause().action is ActionClass.REBOOT_NODE


async def test_manual_request_proceeds_without_kubelet_if_devices_usable(env: Env) -> None:
    env.find_runtime(env.engine)
    env.break_gpu(ActionClass.RESTART_APP)
    await env.ask()
    (request,) = env.engine.requests
    assert request.devices is None, "unknown, not none"
    assert env.progress.decisions.empty(), "nothing is waited for"


HIDDEN = Allocation(
    "default", "trainer-0", "trainer", frozenset(), plugin_devices=frozenset({PluginDevice("nvidia.com/gpu", "?")})
)


@pytest.mark.parametrize("unknown", [Allocations(known=False), Allocations(items=(HIDDEN,), known=True)])
async def test_manual_request_waits_for_kubelet_if_device_broken(env: Env, unknown: Allocations) -> None:
    env.find_runtime(env.engine)
    env.break_gpu()
    env.holders.allocations = unknown
    asking = asyncio.create_task(env.ask())
    async with asyncio.timeout(SECONDS):
        verb, reason, _ = await env.progress.decisions.get()
    assert (verb, reason) == (Verb.POSTPONE, Reason.DEVICE_NOT_PROVEN)
    assert env.engine.requests == []
    env.holders.hold(OTHER)
    await asking
    assert env.engine.requests[0].devices == frozenset()
    assert env.progress.decisions.empty(), "reported once"


async def test_manual_request_without_runtime_waits_and_reports_why(env: Env) -> None:
    env.holders.hold()
    asking = asyncio.create_task(env.ask())
    async with asyncio.timeout(SECONDS):
        assert await env.progress.decisions.get() == (Verb.POSTPONE, Reason.RUNTIME_UNAVAILABLE, "no socket")
    env.find_runtime(env.engine)
    await asking
    assert len(env.engine.requests) == 1


async def test_manual_request_without_runtime_times_out(env: Env) -> None:
    env.requests._timeout = 0.01
    await env.ask()
    env.find_runtime(env.engine)
    assert env.engine.requests == []


async def test_manual_request_resolves_pod_by_name(env: Env) -> None:
    assert env.requests.target(namespace="default", pod="trainer-0", asked=RestartOverrides()) == TRAINER
    with pytest.raises(NoSuchPodError, match="default/missing"):
        env.requests.target(namespace="default", pod="missing", asked=RestartOverrides())
    env.pods.synced = False
    with pytest.raises(PodsUnknownError):
        env.requests.target(namespace="default", pod="missing", asked=RestartOverrides())
