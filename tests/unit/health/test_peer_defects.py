"""Mistakes that other monitors make with kernel logs and codes, each as a test that a naive reader would fail."""

import pytest

from agent.health import catalog_file, fold, kernel_lines, kmsg_record, node_summary
from agent.health.catalog import FaultKey
from agent.health.line_findings import Seen
from agent.model.actions import ActionClass
from agent.model.conditions import ConditionStatus
from agent.model.findings import FindingKind
from agent.model.verdicts import Health, Verdict
from hack import kmsg
from tests.unit.health.reading import read


@pytest.mark.parametrize("later", ["45", "13"])
def test_defect_1_what_follows_a_double_bit_error_does_not_make_the_gpu_usable_again(later: str) -> None:
    """A peer keeps the last event only: a 48 and its usual 45 or 13 made the GPU schedulable."""
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
def test_defect_5_xids_without_comma_with_function_and_of_mig_instances_are_read(
    line: str, expected: tuple[str, str, int | None, int | None]
) -> None:
    (finding,) = read(line)

    device = finding.device
    assert (finding.code, str(device.pci), device.gpu_instance, device.compute_instance) == expected


def test_defect_6_a_malformed_record_neither_ends_the_reading_nor_hides_the_next_one() -> None:
    """The source's side of it is in ``test_kernel_log``: EPIPE counted, malformed counted, no end, no busy loop."""
    reader = kernel_lines.LineReader(catalog_file.builtin())
    raws = [
        kmsg.record("NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=a, x", seq=1, usec=1),
        b"\xff\x00garbage",
        b"4,2",
        b"",
        b"4,99999999999999999999999999,1,-;too far",
        kmsg.record("NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=a, x", seq=3, usec=3),
    ]

    records = [record for raw in raws if isinstance(record := kmsg_record.parse(raw), kmsg_record.KmsgRecord)]
    findings = [found for record in records for found in reader.read(record.text, seen=Seen(observed_at=0.0))]

    assert [finding.code for finding in findings] == ["31", "79"]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (121, ActionClass.NONE),  # corrected, says NVIDIA; a peer reboots the node
        (109, ActionClass.ASK_DRIVER),  # a peer does nothing, NVIDIA says reset
        (136, ActionClass.RESET_DEVICE),  # a peer does nothing, NVIDIA says reset
        (94, ActionClass.RESTART_APP),  # contained: a peer reboots the node
    ],
)
def test_defect_7_codes_are_classed_by_what_they_mean(code: int, action: ActionClass) -> None:
    assert catalog_file.builtin().action(FaultKey(FindingKind.XID, str(code))) is action


def test_defect_8_a_nodes_condition_becomes_true_again_and_its_message_does_not_grow() -> None:
    """A peer's only ever went False, heartbeats kept the stale word alive, and each fault was joined to the last."""
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
