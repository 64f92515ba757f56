"""Mistakes that other monitors make with kernel logs and codes, each as a test that a naive reader would fail."""

import pytest

from agent.health import catalog_file, kernel_lines, kmsg_record
from agent.health.catalog import FaultKey
from agent.health.line_findings import Seen
from agent.model.actions import ActionClass
from agent.model.findings import FindingKind
from hack import kmsg
from tests.unit.health.reading import read


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
