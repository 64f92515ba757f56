"""Answer for the pod that asks: its own devices, and no others."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kubemend.agent.app.health_checks import HealthChecks
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.health_answer import Answer, Undetermined
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, Gpu, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import (
    Allocation,
    Allocations,
    ContainerId,
    ContainerRef,
    PluginDevice,
    PodRef,
    PodUid,
)
from tests.environments.node import NodeEnv
from tests.unit.restart import builders

NOW = 1000.0
GPUS = tuple(
    Gpu(uuid=DeviceId(f"GPU-{number}"), pci=PciAddress.parse(f"0000:4{number}:00.0"), index=number)
    for number in range(2)
)
PODS = tuple(PodRef("default", f"trainer-{number}", PodUid(f"uid-{number}")) for number in range(2))
CONTAINERS = tuple(ContainerId(f"container-{number}") for number in range(2))
"""Pod 0 holds GPU 0 in container 0, pod 1 the others."""


@dataclass(kw_only=True)
class Env(NodeEnv):
    """The parts of an agent from which an answer comes."""

    ledger_now: Callable[[], float] = lambda: NOW

    def __post_init__(self) -> None:
        super().__post_init__()
        self.devices.inventory = DeviceInventory(gpus=GPUS, complete=True)
        self.checks = HealthChecks(access=self.access, holders=self.holders, verdicts_of=self.publisher().verdicts_of)

    def breaks(self, gpu: Gpu, code: str, action: ActionClass = ActionClass.REBOOT_NODE) -> None:
        finding = Finding(
            source=Source.KERNEL_LOG,
            kind=FindingKind.XID,
            code=code,
            device=DeviceLocator(uuid=gpu.uuid),
            action=action,
            observed_at=NOW - 10,
            text=f"Xid {code}",
        )
        self.verdict_store.apply(finding, inventory=self.devices.inventory)

    async def answer(self, container: ContainerId = CONTAINERS[0]) -> Answer:
        found = await self.checks.of(container)
        assert isinstance(found, Answer)
        return found

    async def reason(self, container: ContainerId = CONTAINERS[0]) -> str:
        found = await self.checks.of(container)
        assert isinstance(found, Undetermined)
        return found.reason


def hold(*devices: DeviceId, pod: PodRef, others: frozenset[PluginDevice] = frozenset()) -> Allocation:
    return Allocation(pod.namespace, pod.name, "trainer", frozenset(devices), plugin_devices=others)


def env_on(store: Store, *, runtime: bool = True) -> Env:
    env = Env(store=store)
    if runtime:
        env.find_runtime(None)
    return env


@pytest.fixture
async def env(store: Store) -> Env:
    made = env_on(store)
    for pod, container in zip(PODS, CONTAINERS, strict=True):
        await made.pods.put(builders.pod(ref=pod))
        made.events.run(ContainerRef(pod, "trainer"), name=container)
    made.holders.allocations = Allocations(
        items=tuple(hold(gpu.uuid, pod=pod) for gpu, pod in zip(GPUS, PODS, strict=True)), known=True
    )
    return made


async def test_pod_sees_its_own_devices_only(env: Env) -> None:
    env.breaks(GPUS[1], "79")
    mine, theirs = await env.answer(CONTAINERS[0]), await env.answer(CONTAINERS[1])
    assert (mine.success, theirs.success) == (True, False)
    assert [device["device"] for device in json.loads(mine.output)["devices"]] == ["GPU-0"]
    assert json.loads(theirs.output)["failed_checks"] == ["GPU-1 Xid79"]
    assert "GPU-1" not in mine.output + mine.error


async def test_fault_that_a_restart_fixes_does_not_fail_the_check(env: Env) -> None:
    env.breaks(GPUS[0], "31", ActionClass.RESTART_APP)
    answer = await env.answer()
    assert answer.success
    assert json.loads(answer.output)["devices"][0]["reason"] == "Xid31"


async def test_silent_gpu_is_undetermined(env: Env) -> None:
    env.devices.inventory = DeviceInventory(gpus=GPUS, complete=True, silent=frozenset({GPUS[0].uuid}))
    assert "GPU-0" in await env.reason()
    assert (await env.answer(CONTAINERS[1])).success


async def test_driver_that_does_not_answer_is_undetermined(env: Env) -> None:
    env.devices.inventory = DeviceInventory(gpus=GPUS, complete=False)
    assert "GPU-0" in await env.reason()


async def test_container_that_is_not_listed_is_undetermined(env: Env) -> None:
    assert "does not list" in await env.reason(ContainerId("container-9"))


async def test_kubelet_that_does_not_answer_is_undetermined(env: Env) -> None:
    env.holders.allocations = dataclasses.replace(env.holders.allocations, known=False)
    assert "kubelet" in await env.reason()


async def test_pod_of_the_same_name_with_another_identity_has_no_devices(env: Env) -> None:
    namesake = dataclasses.replace(PODS[0], uid=PodUid("uid-9"))
    env.events.run(ContainerRef(namesake, "trainer"), name="container-9")
    assert "no GPU" in await env.reason(ContainerId("container-9"))


async def test_gpu_in_an_unknown_form_is_undetermined_unless_another_one_fails(env: Env) -> None:
    hidden = frozenset({PluginDevice("nvidia.com/gpu", "odd")})
    env.holders.allocations = Allocations(items=(hold(GPUS[0].uuid, pod=PODS[0], others=hidden),), known=True)
    assert "cannot be matched" in await env.reason()
    env.breaks(GPUS[0], "79")
    assert not (await env.answer()).success


async def test_pod_of_the_same_name_in_another_namespace_holds_other_devices(env: Env) -> None:
    namesake = dataclasses.replace(PODS[0], namespace="elsewhere", uid=PodUid("uid-9"))
    hidden = frozenset({PluginDevice("nvidia.com/gpu", "odd")})
    theirs = hold(GPUS[1].uuid, pod=namesake, others=hidden)
    env.holders.allocations = Allocations(items=(hold(GPUS[0].uuid, pod=PODS[0]), theirs), known=True)
    env.breaks(GPUS[1], "79")
    assert (await env.answer()).success


async def test_without_the_runtime_it_is_undetermined(store: Store) -> None:
    assert "container runtime" in await env_on(store, runtime=False).reason()
