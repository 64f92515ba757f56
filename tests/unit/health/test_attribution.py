"""The containers that a finding concerns, and the one, if any, that it may restart."""

import pytest

from kubemend.agent.health import cgroup_paths
from kubemend.agent.health.state import attribution
from kubemend.agent.health.state.attribution import AttributionResult, ProcessLookup
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid

TRAINER = ContainerRef(PodRef("ns", "trainer", PodUid("1")), "main")
MONITOR = ContainerRef(PodRef("ns", "monitor", PodUid("2")), "exporter")


def fault(action: ActionClass = ActionClass.RESTART_APP, source: Source = Source.KERNEL_LOG) -> Finding:
    return Finding(source, FindingKind.XID, "31", DeviceLocator(), action, 0.0)


@pytest.mark.parametrize(
    ("process", "holders", "restart", "how"),
    [
        pytest.param(TRAINER, [TRAINER], [TRAINER], AttributionResult.PROCESS, id="the-process-named"),
        pytest.param(MONITOR, [TRAINER], [MONITOR], AttributionResult.PROCESS, id="not-the-innocent-holder"),
        pytest.param(TRAINER, None, [TRAINER], AttributionResult.PROCESS, id="the-process-even-if-kubelet-is-away"),
        pytest.param(
            ProcessLookup.NONE_NAMED, [TRAINER], [TRAINER], AttributionResult.SOLE_HOLDER, id="the-only-holder"
        ),
        pytest.param(
            ProcessLookup.NONE_NAMED, [TRAINER, MONITOR], [], AttributionResult.SEVERAL_HOLDERS, id="never-a-guess"
        ),
        pytest.param(ProcessLookup.NONE_NAMED, None, [], AttributionResult.HOLDERS_UNKNOWN, id="kubelet-away"),
        pytest.param(ProcessLookup.NONE_NAMED, [], [], AttributionResult.NO_HOLDER, id="no-holder"),
        pytest.param(ProcessLookup.PUT_IN, [TRAINER], [], AttributionResult.PROCESS_PUT_IN, id="an-exec-shell"),
        pytest.param(
            ProcessLookup.OUTSIDE_PODS, [TRAINER], [], AttributionResult.PROCESS_OUTSIDE_PODS, id="a-host-process"
        ),
        pytest.param(ProcessLookup.FOREIGN, [TRAINER], [], AttributionResult.PROCESS_FOREIGN, id="another-pid"),
        pytest.param(ProcessLookup.FOREIGN, None, [], AttributionResult.PROCESS_FOREIGN, id="and-kubelet-away"),
        pytest.param(ProcessLookup.GONE, [TRAINER], [], AttributionResult.PROCESS_GONE, id="the-process-is-gone"),
        pytest.param(ProcessLookup.NOT_LISTED, [TRAINER], [], AttributionResult.HOLDERS_UNKNOWN, id="not-listed-yet"),
    ],
)
def test_attribute(
    process: ContainerRef | ProcessLookup,
    holders: list[ContainerRef] | None,
    restart: list[ContainerRef],
    how: AttributionResult,
) -> None:
    found = attribution.attribute(fault(), process=process, holders=holders)
    assert (list(found.restart), found.how) == (restart, how)


def test_fault_beyond_a_restart_concerns_all_and_restarts_none() -> None:
    found = attribution.attribute(fault(ActionClass.REBOOT_NODE), process=TRAINER, holders=[TRAINER, MONITOR])
    assert found.restart == ()
    assert set(found.concerned) == {TRAINER, MONITOR}


def test_sole_holder_is_not_restarted_for_a_fault_beyond_a_restart() -> None:
    found = attribution.attribute(fault(ActionClass.REBOOT_NODE), process=ProcessLookup.NONE_NAMED, holders=[TRAINER])
    assert (found.concerned, found.restart, found.how) == ((TRAINER,), (), AttributionResult.NOT_APP_CLASS)


def test_sole_holder_is_not_restarted_for_what_only_nvml_reports() -> None:
    """NVML names no process, which may be one of the host."""
    found = attribution.attribute(fault(source=Source.NVML), process=ProcessLookup.NONE_NAMED, holders=[TRAINER])
    assert (found.restart, found.how) == ((), AttributionResult.PROCESS_UNREPORTED)


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"0::/kubepods/burstable/pod1a/{ID}\n", ID, id="cgroupfs-v2"),
        pytest.param(f"5:memory:/kubepods/pod1a/{ID}\n0::/kubepods/pod1a/{ID}\n", ID, id="v1-hybrid"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod1a.slice/cri-containerd-{ID}.scope\n", ID, id="systemd"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod1a.slice/crio-{ID}.scope/container\n", ID, id="crio-nested"),
        pytest.param(f"0::/kubepods.slice/kubepods-pod1a.slice/crio-conmon-{ID}.scope\n", None, id="conmon-systemd"),
        pytest.param(f"0::/kubepods/pod1a/crio-conmon-{ID}\n", None, id="conmon-cgroupfs"),
        pytest.param("0::/system.slice/sshd.service\n", None, id="host-process"),
        pytest.param("", None, id="empty"),
        pytest.param(f"1:a:/x/{ID}\n2:b:/x/{ID[::-1]}\n", None, id="contradiction-is-no-answer"),
    ],
)
def test_container_id(text: str, expected: str | None) -> None:
    assert cgroup_paths.container_id(text) == expected
