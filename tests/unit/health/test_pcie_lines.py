"""PCIe errors in the kernel log: three generations of AER, DPC, and the mapping from port to device."""

import pytest

from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding, FindingKind
from tests.unit.health.reading import read, read_one

GPU, NIC, OTHER = (PciAddress.parse(text) for text in ("0000:41:00.0", "0000:42:00.0", "0000:05:00.0"))
PORT = PciAddress.parse("0000:40:01.1")


def below(address: PciAddress) -> tuple[PciAddress, ...]:
    """A root port with a switch of a GPU and a NIC below it; anything else is a disk."""
    return {PORT: (GPU, NIC), GPU: (GPU,), NIC: (NIC,)}.get(address, ())


def summary(finding: Finding) -> tuple[str, str, str | None]:
    return finding.kind.value, str(finding.device.pci), finding.evidence.get(evidence.REPORTED_BY)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
            ("AerCorrectable", "0000:00:1c.5", None),
            id="to 4.14, the port's own",
        ),
        pytest.param(
            "pcieport 0001:00:1c.5: AER: Multiple Uncorrected (Non-Fatal) error received: id=4109",
            ("AerNonFatal", "0001:41:01.1", "0001:00:1c.5"),
            id="to 4.14, a device's",
        ),
        pytest.param(
            "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:03:00.0",
            ("AerFatal", "0000:03:00.0", "0000:00:03.0"),
            id="to 6.8",
        ),
        pytest.param(
            "pcieport 0000:00:1c.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:73:00.1",
            ("AerNonFatal", "0000:73:00.1", "0000:00:1c.0"),
            id="since 6.9",
        ),
        pytest.param(
            "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:03:00.0 (no details found",
            ("AerCorrectable", "0000:03:00.0", "0000:00:03.1"),
            id="since 6.16",
        ),
        pytest.param(
            "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
            ("AerCorrectable", "0000:00:03.1", None),
            id="no sender",
        ),
        pytest.param(
            "nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=0300(Receiver ID)",
            ("AerCorrectable", "0000:03:00.0", None),
            id="details, old",
        ),
        pytest.param(
            "pcieport 0000:00:1b.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Recei",
            ("AerNonFatal", "0000:00:1b.0", None),
            id="details, without the prefix",
        ),
        pytest.param(
            "nvidia 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregister",
            ("AerFatal", "0000:03:00.0", None),
            id="details, new",
        ),
        pytest.param(
            "tg3 0000:04:00.0: AER: aer_uncor_severity: 0x000ef030",
            ("AerNonFatal", "0000:04:00.0", None),
            id="firmware first",
        ),
        pytest.param(
            "pcieport 0000:30:03.0: DPC: containment event, status:0x0005 source:0x3400",
            ("AerFatal", "0000:30:03.0", None),
            id="contained",
        ),
        pytest.param(
            "pcieport 0000:00:1c.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected",
            ("AerFatal", "0000:00:1c.0", None),
            id="contained, since 6.16",
        ),
        pytest.param(
            "dpc 0000:10:01.2:pcie010: DPC containment event, status:0x1f09 source:0x0000",
            ("AerFatal", "0000:10:01.2", None),
            id="contained, 4.x",
        ),
    ],
)
def test_every_spelling_of_a_pcie_error_is_parsed(line: str, expected: tuple[str, str, str | None]) -> None:
    assert summary(read_one(line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "nvidia 0000:03:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
        "nvidia 0000:03:00.0: AER:    [ 0] RxErr                  (First)",
        "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:03.0: AER: device recovery failed",
        "pcieport 0000:00:03.0: AER: enabled with IRQ 122",
        "pcieport 0000:00:03.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
        "pcieport 0000:00:03.0: AER: Corrected error received: id=00",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:03:00",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:03:00.01",
        "pcieport 0000:00:03: AER: Corrected error received: 0000:03:00.0",
        "pcieport: AER: Corrected error received: 0000:03:00.0",
        "nvidia 0000:03:00.0: PCIe Bus Error: severity=Correct, type=Physical Layer",
        "app[7]: pcieport 0000:00:03.0: AER: Corrected error received: 0000:03:00.0",
    ],
)
def test_details_and_truncated_lines_give_no_finding(line: str) -> None:
    assert read(line) == []


def test_error_of_a_port_concerns_every_device_below_it() -> None:
    line = f"pcieport {PORT}: DPC: containment event, status:0x1f01 source:0x0000"

    findings = read(line, below=below)

    assert [summary(each) for each in findings] == [
        ("AerFatal", str(GPU), str(PORT)),
        ("AerFatal", str(NIC), str(PORT)),
    ]
    assert len({each.key for each in findings}) == 2
    assert all(each.action is ActionClass.ASK_DRIVER for each in findings)


def test_error_of_a_disk_gives_no_finding() -> None:
    assert read(f"pcieport {PORT}: AER: Corrected error received: {OTHER}", below=below) == []


def test_details_after_an_announcement_are_the_same_error() -> None:
    announced = f"pcieport {PORT}: AER: Multiple Corrected error received: {GPU}"
    detailed = f"nvidia {GPU}: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    of_another = f"mlx5_core {NIC}: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"

    assert len(read(announced, detailed, below=below)) == 1
    assert len(read(announced, detailed, detailed, below=below)) == 2
    assert len(read(announced, of_another, below=below)) == 2
    assert len(read(detailed, announced, below=below)) == 2


def test_more_severe_details_are_emitted_after_milder_announcement() -> None:
    announced = f"pcieport {PORT}: AER: Corrected error received: {GPU}"
    graver = f"nvidia {GPU}: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Unregistered"

    assert [each.kind for each in read(announced, graver, below=below)] == [
        FindingKind.AER_CORRECTABLE,
        FindingKind.AER_FATAL,
    ]


def test_recovery_ends_the_faults_below_the_port() -> None:
    findings = read(f"pcieport {PORT}: AER: device recovery successful", below=below)

    assert {(each.kind, each.code, each.device.pci, each.action) for each in findings} == {
        (FindingKind.FAULT_OVER, code, device, ActionClass.NONE)
        for code in ("AerNonFatal", "AerFatal")
        for device in (GPU, NIC)
    }
    assert len({each.key for each in findings}) == 4
