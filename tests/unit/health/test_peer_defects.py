"""Mistakes of other monitors with kernel logs and codes, each as a test that a naive reader would fail."""

import pytest

from hack import kmsg
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.health.kmsg import kmsg_record, line_reader
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import fold, node_summary
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.verdicts import Health, Verdict
from tests.unit.health.reading import read


@pytest.mark.parametrize("later", ["45", "13"])
def test_defect_1_double_bit_error_effects_keep_gpu_unusable(later: str) -> None:
    """Another tool keeps only the last event: a 48 and its usual 45 or 13 made the GPU schedulable."""
    catalog = catalog_file.builtin()
    lines = [f"NVRM: Xid (PCI:0000:41:00): {code}, pid=9, name=a, x" for code in ("48", later)]
    for order in (lines, lines[::-1]):
        state = fold.HealthState()
        for finding in (found for line in order for found in read(line)):
            state = fold.fold(state, finding, device="GPU-1", catalog=catalog)
        verdict = fold.verdict(state, "GPU-1", answers=True)
        assert (verdict.reason, verdict.action.leaves_device_usable) == ("Xid48", False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 46", ("46", "0000:41:00.0", None, None)),
        ("NVRM: Xid (PCI:0000:00:08.0): 79, pid=1, name=a, x", ("79", "0000:00:08.0", None, None)),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=9, name=a, x", ("43", "0000:01:00.0", 5, None)),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=9, name=a, x", ("94", "0000:01:00.0", 5, 1)),
    ],
)
def test_defect_5_unusual_and_mig_xids_are_parsed(line: str, expected: tuple[str, str, int | None, int | None]) -> None:
    (finding,) = read(line)

    device = finding.device
    assert (finding.code, str(device.pci), device.gpu_instance, device.compute_instance) == expected


def test_defect_6_malformed_record_hides_no_other_record() -> None:
    """The source is covered by ``test_kernel_log``: EPIPE counted, malformed counted, no end, no busy loop."""
    reader = line_reader.LineReader(catalog_file.builtin())
    raws = [
        kmsg.record("NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=a, x", seq=1, usec=1),
        b"\xff\x00garbage",
        b"4,2",
        b"",
        b"4,99999999999999999999999999,1,-;too far",
        kmsg.record("NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=a, x", seq=3, usec=3),
    ]

    records = [record for raw in raws if isinstance(record := kmsg_record.parse(raw), kmsg_record.KmsgRecord)]
    findings = [found for record in records for found in reader.read(record.text, seen=LineContext(observed_at=0.0))]

    assert [finding.code for finding in findings] == ["31", "79"]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (121, ActionClass.NONE),  # corrected according to NVIDIA; another tool reboots the node
        (109, ActionClass.ASK_DRIVER),  # another tool does nothing, NVIDIA advises a reset
        (136, ActionClass.RESET_DEVICE),  # another tool does nothing, NVIDIA advises a reset
        (94, ActionClass.RESTART_APP),  # contained: another tool reboots the node
    ],
)
def test_defect_7_codes_are_classed_by_meaning(code: int, action: ActionClass) -> None:
    assert catalog_file.builtin().action(FaultKey(FindingKind.XID, str(code))) is action


def test_defect_8_node_condition_recovers_and_message_does_not_grow() -> None:
    """Another tool's condition only ever became False, heartbeats renewed it, and each fault was appended."""
    bad = [
        Verdict(f"GPU-{number}", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "x" * 500, since=1.0)
        for number in range(16)
    ]
    good = [Verdict(each.device, Health.HEALTHY, ActionClass.NONE, "Healthy", "answers") for each in bad]
    one, many, after = (node_summary.of_node(verdicts) for verdicts in (bad[:1] + good[1:], bad, good))
    assert (one.status, many.status, after.status) == (
        ConditionStatus.FALSE,
        ConditionStatus.FALSE,
        ConditionStatus.TRUE,
    )
    assert len(many.message) < 4 * len(one.message)
    assert "Xid79" not in after.message
