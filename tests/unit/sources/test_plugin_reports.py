"""What plugins say of devices, as findings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.health import fold
from agent.model.actions import ActionClass
from agent.model.devices import Gpu, GpuUuid, Inventory, MigInstance, PciAddress
from agent.model.findings import Finding, FindingKind, Source
from agent.model.workloads import PodRef, PodUid, PodView, ReportedHealth, ResourceHealth, RestartPolicy
from agent.sources.plugin_reports import PluginReports
from agent.sources.pods import PodChange, PodChangeKind

A = GpuUuid("GPU-aaaaaaaa-0000-0000-0000-000000000000")
B = GpuUuid("GPU-bbbbbbbb-0000-0000-0000-000000000000")
MIG_1 = GpuUuid("MIG-11111111-0000-0000-0000-000000000000")
MIG_2 = GpuUuid("MIG-22222222-0000-0000-0000-000000000000")
PARTED = Gpu(
    uuid=B,
    pci=PciAddress.parse("0000:42:00.0"),
    index=1,
    mig=(MigInstance(MIG_1, 1, 0), MigInstance(MIG_2, 2, 0)),
)
INVENTORY = Inventory(gpus=(Gpu(uuid=A, pci=PciAddress.parse("0000:41:00.0"), index=0), PARTED), complete=True)
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
    """A source, and what it emitted."""

    def __init__(self, *held: GpuUuid) -> None:
        self.emitted: list[Finding] = []
        self.inventory = INVENTORY
        self.source = PluginReports(
            emit=self.emitted.append,
            classify=lambda _kind, _code: ActionClass.OBSERVE,
            locate=lambda uuid: self.inventory.by_uuid(uuid),  # noqa: PLW0108 - the inventory changes
            held=lambda: held,
            now=lambda: 100.0,
        )

    def see(self, *pods: PodView) -> None:
        for each in pods:
            self.source.take(PodChange(PodChangeKind.CHANGED, each))

    def lose(self, each: PodView) -> None:
        self.source.take(PodChange(PodChangeKind.GONE, each))

    @property
    def told(self) -> list[tuple[FindingKind, GpuUuid | None]]:
        return [(finding.kind, finding.device.uuid) for finding in self.emitted]


@pytest.fixture
def node() -> Node:
    return Node()


def test_unhealthy_is_told_once_and_its_end_when_it_is_healthy(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, message="ECC")), pod(report(UNHEALTHY, message="ECC")))
    (finding,) = node.emitted
    assert (finding.source, finding.kind, finding.code) == (Source.KUBELET, RAISED, "")
    assert (finding.action, finding.device.uuid) == (ActionClass.OBSERVE, A)
    assert finding.text == "its plugin says Unhealthy (nvidia.com/gpu: ECC)"
    node.see(pod(report(HEALTHY)))
    over = node.emitted[-1]
    assert (over.kind, over.code, over.action) == (OVER, "ReportedUnhealthy", ActionClass.NONE)
    assert over.key != finding.key
    node.see(pod(report(HEALTHY)))
    assert len(node.emitted) == 2


def test_healthy_pods_say_nothing(node: Node) -> None:
    node.see(pod(report(HEALTHY)), pod(report(UNKNOWN), name="b"), pod(name="c"))
    assert node.emitted == []


def test_unknown_neither_raises_nor_ends(node: Node) -> None:
    node.see(pod(report(UNKNOWN)), pod(report(UNHEALTHY)), pod(report(UNKNOWN)))
    assert node.told == [(RAISED, A)]
    node.see(pod(report(HEALTHY)))
    assert node.told == [(RAISED, A), (OVER, A)]


def test_status_that_says_nothing_any_more_ends_nothing(node: Node) -> None:
    node.see(pod(report(UNHEALTHY)), pod())
    assert node.told == [(RAISED, A)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_end_of_the_pod_is_the_end_of_its_word(node: Node, phase: str) -> None:
    """Kubelet keeps the status of a pod that has ended as it was."""
    node.see(pod(report(UNHEALTHY)), pod(report(UNHEALTHY), phase=phase))
    assert node.told == [(RAISED, A), (OVER, A)]


def test_pod_that_is_gone_says_nothing_any_more(node: Node) -> None:
    node.see(pod(report(UNHEALTHY)))
    node.lose(pod(report(UNHEALTHY)))
    assert node.told == [(RAISED, A), (OVER, A)]


def test_shared_device_is_reported_while_one_pod_says_so(node: Node) -> None:
    first, second = report(UNHEALTHY, device=f"{A}::1"), report(UNHEALTHY, device=f"{A}::2")
    node.see(pod(first), pod(second, name="b"))
    node.lose(pod(first))
    assert node.told == [(RAISED, A)]
    node.lose(pod(second, name="b"))
    assert node.told == [(RAISED, A), (OVER, A)]


def test_one_mig_instance_that_is_healthy_again_does_not_clear_the_other(node: Node) -> None:
    """Health is kept per GPU: peers lose the fault of one instance to its sibling."""
    node.see(pod(report(UNHEALTHY, device=MIG_1), report(UNHEALTHY, device=MIG_2)))
    node.see(pod(report(HEALTHY, device=MIG_1), report(UNHEALTHY, device=MIG_2)))
    assert OVER not in [kind for kind, _ in node.told]
    node.see(pod(report(HEALTHY, device=MIG_1), report(HEALTHY, device=MIG_2)))
    assert node.told[-1] == (OVER, B)


def test_mig_instance_waits_until_the_driver_tells_whose_it_is(node: Node) -> None:
    node.inventory = Inventory()
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    assert node.emitted == []
    node.inventory = INVENTORY
    node.source.look()
    assert node.told == [(RAISED, B)]


def test_while_nobody_knows_whose_instance_it_is_nothing_that_was_held_is_over() -> None:
    node = Node(A, B)
    node.inventory = Inventory()
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.source.listed()
    assert node.told == []
    node.inventory = INVENTORY
    node.source.look()
    assert node.told == [(RAISED, B), (OVER, A)]


def test_driver_that_goes_away_ends_nothing(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, device=MIG_1)))
    node.inventory = Inventory()
    node.source.look()
    assert node.told == [(RAISED, B)]


@pytest.mark.parametrize("name", [A, f"{A}::3", f"nvidia.com/gpu={A}", f"k8s.gpu.nvidia.com/device={A}"])
def test_uuid_is_found_wherever_it_stands_in_the_id(node: Node, name: str) -> None:
    node.see(pod(report(UNHEALTHY, device=name)))
    assert node.told == [(RAISED, A)]


def test_what_is_no_gpu_is_logged_once_and_nothing_else(node: Node) -> None:
    with capture_logs() as logs:
        for name in ("a", "b"):
            node.see(pod(report(UNHEALTHY, device="gpu.nvidia.com/node-1/gpu-0"), name=name))
    assert [entry["event"] for entry in logs] == ["plugin_report.not_a_gpu"]
    assert node.emitted == []


def test_another_message_is_told_again(node: Node) -> None:
    node.see(pod(report(UNHEALTHY, message="ECC")), pod(report(UNHEALTHY, message="lost")))
    assert node.told == [(RAISED, A), (RAISED, A)]


def test_what_an_earlier_agent_held_is_over_when_no_pod_says_it() -> None:
    node = Node(A)
    node.see(pod(report(HEALTHY)))
    assert node.emitted == []  # not all pods have been told yet
    for _ in range(2):
        node.source.listed()
    assert node.told == [(OVER, A)]


def test_what_an_earlier_agent_held_stays_while_a_pod_says_it_or_does_not_know() -> None:
    for health in (UNHEALTHY, UNKNOWN):
        node = Node(A)
        node.see(pod(report(health)))
        node.source.listed()
        assert OVER not in [kind for kind, _ in node.told]
        node.see(pod(report(HEALTHY)))
        assert node.told[-1] == (OVER, A)


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
def test_repetition_changes_nothing_and_whatever_is_raised_ends_with_the_pods(
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
    state = fold.HealthState()
    for finding in once.emitted:
        assert finding.device.uuid is not None
        state = fold.fold(state, finding, device=finding.device.uuid)
    assert not state.devices
