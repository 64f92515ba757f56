"""Only the driver's own records count, not imitations by packet filters, programs or other devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kernel_samples import SAMPLES
from hack import kmsg
from kubemend.agent.health.kmsg import kmsg_record, provenance
from kubemend.agent.health.state import evidence
from tests.unit.health.reading import read

XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=7, name=x, GPU has fallen off the bus."
AER = "nvidia 0000:41:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered)"
PCI = {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:41:00.0"}
PACKETS = (
    "IN=eth0 OUT= MAC=00:00:5e:00:53:01:00:00:5e:00:53:02:08:00 SRC=192.0.2.1 DST=192.0.2.2 LEN=84 TOS=0x00",
    "IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=84",
    "IN=\u2003a OUT=b,c ARP HTYPE=1 PTYPE=0x0800 OPCODE=1",
    "IN=eth0 OUT=br-0 MAC source = 00:00:5e:00:53:01 MAC dest = 00:00:5e:00:53:02 proto = 0x0800",
)


def parsed(text: str, *, priority: int = 4, dictionary: dict[str, str] | None = None) -> kmsg_record.KmsgRecord:
    raw = kmsg.record(text, seq=1, usec=1, priority=priority, dictionary=dictionary)
    record = kmsg_record.parse(raw.removesuffix(b"\n"))
    assert isinstance(record, kmsg_record.KmsgRecord)
    return record


@pytest.mark.parametrize("text", SAMPLES)
def test_lines_of_kernels_and_drivers_are_genuine(text: str) -> None:
    assert provenance.is_genuine(parsed(text))


@pytest.mark.parametrize("packet", PACKETS)
@pytest.mark.parametrize("text", SAMPLES)
def test_prefix_of_packet_filter_is_not_genuine(text: str, packet: str) -> None:
    for line in (f"{text}{packet}", f"{text} {packet}", f"{text[:29]}{packet}", f"{text}\n{packet}"):
        assert not provenance.is_genuine(parsed(line))
        assert read(line) == []


_IN_A_NAME = st.characters(exclude_characters=" /:")
_NAMES = st.one_of(
    st.text(st.characters(max_codepoint=127, exclude_characters=" /:"), max_size=15), st.text(_IN_A_NAME, max_size=5)
)
"""Names of interfaces, which the kernel limits to 15 bytes."""


@given(text=st.sampled_from(SAMPLES), device=_NAMES)
def test_interface_name_cannot_hide_the_packet(text: str, device: str) -> None:
    assert not provenance.is_genuine(parsed(f"{text}IN={device} OUT={device} SRC=192.0.2.1 DST=192.0.2.2"))


@pytest.mark.parametrize("facility", [1, 3, 127])
def test_record_of_another_facility_is_not_genuine(facility: int) -> None:
    assert not provenance.is_genuine(parsed(XID, priority=facility << 3 | 3))


@pytest.mark.parametrize(
    ("dictionary", "genuine"),
    [
        (PCI, True),
        ({}, False),
        ({"SUBSYSTEM": "pci"}, False),
        ({"DEVICE": "+pci:0000:42:00.0"}, False),
        ({"DEVICE": "+pci:"}, False),
        ({"DEVICE": "+usb:0000:41:00.0"}, False),
        ({"DEVICE": "n4"}, False),
    ],
)
def test_line_about_device_must_carry_device_field(dictionary: dict[str, str], genuine: bool) -> None:
    assert provenance.is_genuine(parsed(AER, dictionary=dictionary)) is genuine


def test_port_service_carries_its_own_device_name() -> None:
    text = "dpc 0000:10:01.2:pcie010: DPC containment event, status:0x1f09 source:0x0000"
    assert provenance.is_genuine(parsed(text, dictionary={"DEVICE": "+pci_express:0000:10:01.2:pcie010"}))
    assert not provenance.is_genuine(parsed(text, dictionary={"DEVICE": "+pci_express:0000:10:01.3:pcie010"}))


@pytest.mark.parametrize("text", SAMPLES)
def test_newline_of_a_program_cannot_forge_a_line(text: str) -> None:
    """A process or file name in a kernel line may contain a newline; it begins neither a record nor a dictionary."""
    forged = f"x\n{text}\n DEVICE=+pci:0000:41:00.0"
    assert read(parsed(forged).text) == []
    assert "DEVICE" not in parsed(f"x: {forged}").dictionary


def test_process_cannot_name_a_foreign_cgroup() -> None:
    container = "4f1c" * 16
    path = f"/kubepods/pod0f6f7b0e-3a52-4c5e-9c58-0d8f1a2b3c4d/{container}"
    (finding,) = read(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/kubepods,"
        f"task_memcg={path},task=a,task=b,pid=1,pid=4242,uid=0"
    )
    assert (finding.pid, finding.process_name, finding.evidence[evidence.CONTAINER_ID]) == (
        4242,
        "a,task=b,pid=1",
        container,
    )
