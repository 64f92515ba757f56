"""Reports of device plugins as findings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kubemend.agent.health.state import fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DevicePartition, Gpu, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import (
    PodChange,
    PodChangeKind,
    PodRef,
    PodUid,
    PodView,
    ReportedHealth,
    ResourceHealth,
    RestartPolicy,
)
from kubemend.agent.sources.plugin_reports import PluginReports

A = DeviceId("GPU-aaaaaaaa-0000-0000-0000-000000000000")
B = DeviceId("GPU-bbbbbbbb-0000-0000-0000-000000000000")
MIG_1 = DeviceId("MIG-11111111-0000-0000-0000-000000000000")
MIG_2 = DeviceId("MIG-22222222-0000-0000-0000-000000000000")
PARTED = Gpu(
    uuid=B,
    pci=PciAddress.parse("0000:42:00.0"),
    index=1,
    partitions=(DevicePartition(MIG_1, 1, 0), DevicePartition(MIG_2, 2, 0)),
)
INVENTORY = DeviceInventory(gpus=(Gpu(uuid=A, pci=PciAddress.parse("0000:41:00.0"), index=0), PARTED), complete=True)
HEALTHY, UNHEALTHY, UNKNOWN = ReportedHealth.HEALTHY, ReportedHealth.UNHEALTHY, ReportedHealth.UNKNOWN
RAISED, OVER = FindingKind.REPORTED_UNHEALTHY, FindingKind.FAULT_OVER


def report(health: ReportedHealth, *, device: str = A, message: str = "") -> ResourceHealth:
    return ResourceHealth("nvidia.com/gpu", device, health, message)


def pod(*reports: ResourceHealth, name: str = "a", phase: str = "Running") -> PodView:
    return PodView(
        ref=PodRef("ml", name, PodUid(name)),
        phase=phase,
        restart_policy=RestartPolicy.ALWAYS,
        containers=(),
        resource_health=reports,
    )


class Node:
    """A source, and its emitted findings."""

    def __init__(self, *held: DeviceId) -> None:
        self.emitted: list[Finding] = []
        self.inventory = INVENTORY
        self.allocatable: frozenset[str] = frozenset()
        self.source = PluginReports(
            emit=self.emitted.append,
            classify=lambda _kind, _code: ActionClass.OBSERVE,
            locate=lambda uuid: self.inventory.by_id(uuid),  # noqa: PLW0108 - the inventory changes
            held=lambda: held,
            allocatable=self._allocatable,
            now=lambda: 100.0,
        )

    async def _allocatable(self) -> frozenset[str]:
        return self.allocatable

    async def ask_kubelet(self, *allocatable: str) -> None:
        """Let the source ask kubelet, which would allocate these devices."""
        self.allocatable = frozenset(allocatable)
        await self.source.check()

    def see(self, *pods: PodView) -> None:
        for each in pods:
            self.source.apply(PodChange(PodChangeKind.CHANGED, each))

    def lose(self, each: PodView) -> None:
        self.source.apply(PodChange(PodChangeKind.GONE, each))

    @property
    def transitions(self) -> list[tuple[FindingKind, DeviceId | None]]:
        return [(finding.kind, finding.device.uuid) for finding in self.emitted]


@pytest.fixture
def node() -> Node:
    return Node()


def test_unhealthy_is_emitted_once_and_its_end_when_healthy(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, message="ECC")), pod(report(UNHEALTHY, message="ECC")))
    (finding,) = node.emitted
    assert (finding.source, finding.kind, finding.code) == (Source.KUBELET, RAISED, "")
    assert (finding.action, finding.device.uuid) == (ActionClass.OBSERVE, A)
    assert finding.text == "its plugin reports Unhealthy (nvidia.com/gpu: ECC)"
    node.see(pod(report(HEALTHY)))
    over = node.emitted[-1]
    assert (over.kind, over.code, over.action) == (OVER, "ReportedUnhealthy", ActionClass.NONE)
    assert over.key != finding.key
    node.see(pod(report(HEALTHY)))
    assert len(node.emitted) == 2


def test_healthy_pods_emit_nothing(node: Node) -> None:
    node.see(pod(report(HEALTHY)), pod(report(UNKNOWN), name="b"), pod(name="c"))
    assert node.emitted == []


def test_unknown_neither_raises_nor_ends(node: Node) -> None:
    node.see(pod(report(UNKNOWN)), pod(report(UNHEALTHY)), pod(report(UNKNOWN)))
    assert node.transitions == [(RAISED, A)]
    node.see(pod(report(HEALTHY)))
    assert node.transitions == [(RAISED, A), (OVER, A)]


def test_status_without_the_device_ends_nothing(node: Node) -> None:
    node.see(pod(report(UNHEALTHY)), pod())
    assert node.transitions == [(RAISED, A)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_finished_pod_shows_nothing_about_its_devices(node: Node, phase: str) -> None:
    """Kubelet leaves the status of a finished pod unchanged, and the device as it was."""
    node.see(pod(report(UNHEALTHY)), pod(report(UNHEALTHY), phase=phase))
    await node.ask_kubelet(B)
    assert node.transitions == [(RAISED, A)]
    await node.ask_kubelet(f"{A}::0", B)
    assert node.transitions == [(RAISED, A), (OVER, A)]


async def test_deleted_pod_shows_nothing_about_its_devices(node: Node) -> None:
    node.see(pod(report(UNHEALTHY)))
    node.lose(pod(report(UNHEALTHY)))
    await node.ask_kubelet()
    assert node.transitions == [(RAISED, A)]
    node.see(pod(report(HEALTHY), name="b"))
    assert node.transitions == [(RAISED, A), (OVER, A)]


@pytest.mark.parametrize("health", [UNHEALTHY, UNKNOWN])
async def test_a_pod_that_shows_the_device_now_has_precedence(node: Node, health: ReportedHealth) -> None:
    node.see(pod(report(UNHEALTHY)), pod(report(health)))
    await node.ask_kubelet(A)
    assert node.transitions == [(RAISED, A)]


async def test_instance_without_a_pod_is_proven_by_itself(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.lose(pod())
    node.see(pod(report(HEALTHY, device=MIG_2), name="b"))
    await node.ask_kubelet(MIG_2)
    assert node.transitions == [(RAISED, B)]
    await node.ask_kubelet(MIG_1)
    assert node.transitions == [(RAISED, B), (OVER, B)]


@pytest.mark.parametrize(("partitions", "ready"), [((), (B,)), (PARTED.partitions[1:], (MIG_2,))])
async def test_instance_that_no_longer_exists_is_proven_by_its_gpu(
    node: Node, partitions: tuple[DevicePartition, ...], ready: tuple[str, ...]
) -> None:
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.lose(pod())
    node.inventory = DeviceInventory(gpus=(replace(PARTED, partitions=partitions),), complete=True)
    await node.ask_kubelet(A)
    assert node.transitions == [(RAISED, B)]
    await node.ask_kubelet(*ready)
    assert node.transitions == [(RAISED, B), (OVER, B)]


async def test_kubelet_is_asked_only_while_a_fault_holds(node: Node) -> None:
    node.source = PluginReports(
        emit=node.emitted.append,
        classify=lambda _kind, _code: ActionClass.OBSERVE,
        locate=INVENTORY.by_id,
        held=lambda: (),
        allocatable=not_asked,
    )
    await node.source.check()
    node.see(pod(report(UNHEALTHY)))
    with pytest.raises(AssertionError):
        await node.source.check()


async def not_asked() -> frozenset[str]:
    raise AssertionError


async def test_cleared_device_is_emitted_again_if_a_pod_still_shows_it(node: Node) -> None:
    node.see(pod(report(UNHEALTHY)), pod(report(UNHEALTHY, device=B), name="b"))
    node.lose(pod(name="b"))
    for device in (A, B):
        node.source.forget(device)
    await node.ask_kubelet()
    assert node.transitions == [(RAISED, A), (RAISED, B), (RAISED, A)]


async def test_shared_device_is_reported_while_one_pod_reports_it(node: Node) -> None:
    first, second = report(UNHEALTHY, device=f"{A}::1"), report(UNHEALTHY, device=f"{A}::2")
    node.see(pod(first), pod(second, name="b"))
    node.see(pod(replace(first, health=HEALTHY)))
    assert node.transitions == [(RAISED, A)]
    node.see(pod(replace(second, health=HEALTHY), name="b"))
    assert node.transitions == [(RAISED, A), (OVER, A)]


def test_one_healthy_mig_instance_does_not_clear_the_other(node: Node) -> None:
    """Health is kept per GPU: other tools lose the fault of one instance to its sibling."""
    node.see(pod(report(UNHEALTHY, device=MIG_1), report(UNHEALTHY, device=MIG_2)))
    node.see(pod(report(HEALTHY, device=MIG_1), report(UNHEALTHY, device=MIG_2)))
    assert OVER not in [kind for kind, _ in node.transitions]
    node.see(pod(report(HEALTHY, device=MIG_1), report(HEALTHY, device=MIG_2)))
    assert node.transitions[-1] == (OVER, B)


def test_mig_instance_waits_until_its_gpu_is_known(node: Node) -> None:
    node.inventory = DeviceInventory()
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    assert node.emitted == []
    node.inventory = INVENTORY
    node.source.update()
    assert node.transitions == [(RAISED, B)]


async def test_unknown_mig_instance_ends_no_recorded_fault() -> None:
    node = Node(A, B)
    node.inventory = DeviceInventory()
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.source.listed()
    await node.ask_kubelet(A)
    assert node.transitions == []
    node.inventory = INVENTORY
    await node.ask_kubelet(A)
    assert node.transitions == [(RAISED, B), (OVER, A)]


def test_unavailable_driver_ends_nothing(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.inventory = DeviceInventory()
    node.source.update()
    assert node.transitions == [(RAISED, B)]


@pytest.mark.parametrize("name", [A, f"{A}::3", f"nvidia.com/gpu={A}", f"k8s.gpu.nvidia.com/device={A}"])
def test_uuid_is_found_anywhere_in_the_id(node: Node, name: str) -> None:
    node.see(pod(report(UNHEALTHY, device=name)))
    assert node.transitions == [(RAISED, A)]


def test_device_that_is_not_a_gpu_is_only_logged_once(node: Node) -> None:
    with capture_logs() as logs:
        for name in ("a", "b"):
            node.see(pod(report(UNHEALTHY, device="gpu.nvidia.com/node-1/gpu-0"), name=name))
    assert [entry["event"] for entry in logs] == ["plugin_report.not_a_gpu"]
    assert node.emitted == []


def test_changed_message_is_emitted_again(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, message="ECC")), pod(report(UNHEALTHY, message="lost")))
    assert node.transitions == [(RAISED, A), (RAISED, A)]


def test_fault_of_previous_agent_ends_when_a_pod_shows_it_healthy() -> None:
    node = Node(A)
    node.see(pod(report(HEALTHY)))
    assert node.emitted == []  # not all pods have been listed yet
    for _ in range(2):
        node.source.listed()
    assert node.transitions == [(OVER, A)]


async def test_fault_of_previous_agent_that_no_pod_reports_stays_until_kubelet_would_allocate_the_gpu() -> None:
    """Which instance the previous agent saw is not stored, so all of them must be healthy."""
    node = Node(A, B)
    node.source.listed()
    await node.ask_kubelet(MIG_1)
    assert node.transitions == []
    await node.ask_kubelet(A, MIG_1, MIG_2)
    assert node.transitions == [(OVER, A), (OVER, B)]


def test_fault_of_previous_agent_stays_while_reported_or_unknown() -> None:
    for health in (UNHEALTHY, UNKNOWN):
        node = Node(A)
        node.see(pod(report(health)))
        node.source.listed()
        assert OVER not in [kind for kind, _ in node.transitions]
        node.see(pod(report(HEALTHY)))
        assert node.transitions[-1] == (OVER, A)


_reports = st.lists(
    st.builds(
        report,
        st.sampled_from(ReportedHealth),
        device=st.sampled_from([A, MIG_1, MIG_2, f"{A}::1", "other"]),
        message=st.sampled_from(["", "ECC"]),
    ),
    max_size=4,
)
_changes = st.lists(st.tuples(st.sampled_from("abc"), st.none() | _reports), max_size=12)


@given(changes=_changes)
def test_repetition_changes_nothing_and_faults_end_when_kubelet_would_allocate_the_devices(
    changes: list[tuple[str, list[ResourceHealth] | None]],
) -> None:
    once, twice = Node(), Node()
    for name, reports in changes:
        for node, times in ((once, 1), (twice, 2)):
            for _ in range(times):
                if reports is None:
                    node.lose(pod(name=name))
                else:
                    node.see(pod(*reports, name=name))
    assert [replace(finding, key="") for finding in once.emitted] == [
        replace(finding, key="") for finding in twice.emitted
    ]
    for name in "abc":
        once.lose(pod(name=name))
    once.source.update(allocatable={A, MIG_1, MIG_2})
    state = fold.HealthState()
    for finding in once.emitted:
        assert finding.device.uuid is not None
        state = fold.fold(state, finding, device=finding.device.uuid)
    assert not state.devices
