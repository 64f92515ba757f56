"""Kernel lines about GPUs: every form that drivers print, and nothing else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack import kmsg
from kubemend.agent.health.kmsg.grammar import xid
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding, FindingKind
from tests.unit.health.reading import read


def summary(finding: Finding) -> tuple[object, ...]:
    device = finding.device
    return (
        finding.code,
        str(device.pci),
        device.gpu_instance,
        device.compute_instance,
        finding.pid,
        finding.process_name,
        finding.action.value,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name=python3, Ch 00000008, intr 10000000. MMU Fault: ENGINE",
            ("31", "0000:41:00.0", None, None, 4242, "python3", "RestartApp"),
            id="as current drivers print it",
        ),
        pytest.param(
            "NVRM: Xid (0000:03:00): 13, 0001 00000000 0000a040 00002558 00000000",
            ("13", "0000:03:00.0", None, None, None, None, "RestartApp"),
            id="old driver without PCI: and pid",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:00:08.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ("79", "0000:00:08.0", None, None, None, None, "RebootNode"),
            id="function in the address, unknown process in quotes",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:1A:00): 62, pid=<unknown>, name='<unknown>', 0000(0000) 00000000",
            ("62", "0000:1a:00.0", None, None, None, None, "ResetDevice"),
            id="upper case, unknown the other way round",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 46",
            ("46", "0000:41:00.0", None, None, None, None, "ResetDevice"),
            id="no comma, no text",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 46 pid=77 name=app",
            ("46", "0000:41:00.0", None, None, 77, "app", "ResetDevice"),
            id="no commas at all",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=99, name=a.out, Ch 0000000a",
            ("43", "0000:01:00.0", 5, None, 99, "a.out", "RestartApp"),
            id="MIG GPU instance",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:13 GPU-CI:00): 94, pid=99, name=a.out, Contained: SM",
            ("94", "0000:01:00.0", 13, 0, 99, "a.out", "RestartApp"),
            id="MIG compute instance",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 95, pid=5, name=x, Uncontained: LTC",
            ("95", "0018:01:00.0", None, None, 5, "x", "ResetDevice"),
            id="other PCI domain",
        ),
        pytest.param(
            "NVRM: Xid (PCI:00010000:01:00): 95, Uncontained: LTC",
            ("95", "10000:01:00.0", None, None, None, None, "ResetDevice"),
            id="PCI domain beyond four digits",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 43, pid=31, name=nvc:[driver], Ch 00000010",
            ("43", "0000:41:00.0", None, None, 31, "nvc:[driver]", "RestartApp"),
            id="name with colon and brackets",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 43, pid=31, name=ray::WorkerDict, Ch 00000010",
            ("43", "0000:41:00.0", None, None, 31, "ray::WorkerDict", "RestartApp"),
            id="name with double colon",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 43, pid=31, name=my trainer (x), Ch 00000010",
            ("43", "0000:41:00.0", None, None, 31, "my trainer (x)", "RestartApp"),
            id="name with blanks",
        ),
        pytest.param(
            "NVRM:  Xid (PCI:0000:41:00):  119,  pid=0,  name=,  Timeout after 6s of waiting for RPC response",
            ("119", "0000:41:00.0", None, None, None, None, "ResetDevice"),
            id="double blanks, pid 0, empty name",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 999, something new",
            ("999", "0000:41:00.0", None, None, None, None, "AskDriver"),
            id="a code that the catalog does not know",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link -1 (0x00000001 0x00000008)",
            ("144", "0000:01:00.0", None, None, None, None, "None"),
            id="NVLink5, not fatal by the driver",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
            ("149", "0019:01:00.0", None, None, None, None, "AskDriver"),
            id="NVLink5, fatal by the driver",
        ),
    ],
)
def test_every_form_of_xid_line_is_parsed(line: str, expected: tuple[object, ...]) -> None:
    (finding,) = read(line)

    assert finding.kind is FindingKind.XID
    assert summary(finding) == expected


def test_finding_carries_location_and_time() -> None:
    (finding,) = read("NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=a, MMU Fault")

    assert (finding.observed_at, finding.boot_seconds, finding.key) == (1_700_000_000.0, 12.5, "kmsg:1:12500000")
    assert finding.text == "MMU Fault"
    assert finding.title == "Xid 31"


def test_effect_that_names_its_cause_calls_for_no_action() -> None:
    (finding,) = read(
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"
    )

    assert finding.action is ActionClass.NONE
    assert finding.evidence[evidence.CAUSED_BY_XID] == "149"


def test_cleanup_after_a_killed_process_does_not_restart_its_container() -> None:
    (finding,) = read("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001")

    assert finding.action is ActionClass.NONE


@pytest.mark.parametrize(
    ("payload", "value", "action"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "1", ActionClass.RESET_DEVICE),
        ("from 0x0 (None) to 0x1 (PF FLR)", "1", ActionClass.RESET_DEVICE),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", "2", ActionClass.REBOOT_NODE),
        ("from 0x0 (None) to 0x2 (OS Reboot)", "2", ActionClass.REBOOT_NODE),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "3", ActionClass.RESET_DEVICE),
        ("from 0x1 (GPU Reset Required) to 0x4 (Drain and Reset)", "4", ActionClass.RESET_DEVICE),
        ("from 0x0 (None) to 0x5 (Recover IMEX Domain)", "5", ActionClass.ASK_DRIVER),
        ("from 0x0 (None) to 0x6 (Bus Reset)", "6", ActionClass.RESET_DEVICE),
        ("from 0x0 (None) to 0x7 (System Reboot)", "7", ActionClass.REBOOT_NODE),
        ("from 0x2 (Node Reboot Required) to 0x0 (None)", "0", ActionClass.NONE),
        ("from 1 to 0", "0", ActionClass.NONE),
        ("from 0x0 (None) to 04", "4", ActionClass.RESET_DEVICE),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", "0", ActionClass.NONE),
        ("from 0x0 (None) to 0x63 (Dance)", "99", ActionClass.ASK_DRIVER),
    ],
)
def test_xid_154_is_the_drivers_recovery_action(payload: str, value: str, action: ActionClass) -> None:
    (finding,) = read(f"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed {payload}")

    assert (finding.code, finding.action) == ("154", action)
    assert finding.evidence[evidence.RECOVERY_ACTION] == value


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (
            "13, pid=7, name=a, Graphics SM Warp Exception on (GPC 2, TPC 0, SM 1): Out Of Range Address",
            {evidence.GPC: "2", evidence.TPC: "0", evidence.SM: "1"},
        ),
        ("13, Graphics SM Global Exception on (GPC 1, TPC 3): Multiple", {evidence.GPC: "1", evidence.TPC: "3"}),
        ("13, pid=7, name=a, Graphics Exception: ESR 0x524648=0xf 0x524650=0x20", {}),
        (
            "31, pid=7, name=a, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f",
            {evidence.MMU_CLIENT: "GPCCLIENT_T1_0"},
        ),
        (
            "31, pid=7, name=a, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_5 faulted @ 0",
            {evidence.GPC: "3", evidence.MMU_CLIENT: "GPCCLIENT_T1_5"},
        ),
        (
            "31, pid=7, name=a, Ch 00000002. MMU Fault: ENGINE CE0 HUBCLIENT_CE0 faulted @ 0x7f16_3e000000. Fault",
            {evidence.MMU_CLIENT: "HUBCLIENT_CE0"},
        ),
        ("31, pid=7, name=a, Ch 00000008, engmask 00000101, intr 10000000", {}),
    ],
)
def test_chip_location_is_evidence(line: str, place: dict[str, str]) -> None:
    (finding,) = read(f"NVRM: Xid (PCI:0000:41:00): {line}")

    assert finding.evidence == place


def test_unparsable_xid_154_is_no_evidence_about_the_device() -> None:
    (finding,) = read("NVRM: Xid (PCI:0008:01:00): 154, something else")

    assert finding.action is ActionClass.ASK_DRIVER
    assert evidence.RECOVERY_ACTION not in finding.evidence


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."], id="short"),
        pytest.param(["NVRM: GPU at 0000:b3:00.0 has fallen off the bus."], id="older"),
        pytest.param(
            ["NVRM: The NVIDIA GPU 0000:b3:00.0 has fallen off the bus and is not responding to commands."],
            id="one line",
        ),
        pytest.param(
            [
                "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
                "NVRM: fallen off the bus and is not responding to commands."
            ],
            id="one record of three lines",
        ),
        pytest.param(
            [
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands.",
            ],
            id="split by a log keeper",
        ),
        pytest.param(
            [
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "NVRM: GPU 0000:b3:00.0: GPU serial number is 1653723052734.",
                "               NVRM: fallen off the bus and is not responding to commands.",
            ],
            id="split, with another line between",
        ),
    ],
)
def test_lost_gpu_is_found_without_an_xid(lines: list[str]) -> None:
    (finding,) = read(*lines)

    assert (finding.kind, finding.action) == (FindingKind.OFF_BUS, ActionClass.REBOOT_NODE)
    assert finding.device.pci == PciAddress.parse("0000:b3:00.0")
    assert "\n" not in finding.text


@pytest.mark.parametrize(
    ("line", "code", "action", "link"),
    [
        (
            "SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            "12028",
            "None",
            "32",
        ),
        ("SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "20034", "AskDriver", "30"),
        ("SXid (PCI:0000:06:00.0): 26006, Fatal, SOE HALT", "26006", "AskDriver", None),
        ("SXid (PCI:0000:06:00.0): 26008 Fatal SOE watchdog", "26008", "AskDriver", None),
        ("SXid (PCI:0000:06:00.0): 23001, Fatal, Link 4 ingress invalid", "23001", "RebootNode", "4"),
        ("SXid (PCI:0000:06:00.0): 11001, Non-fatal, Link 4 ingress invalid command", "11001", "None", "4"),
        ("SXid (PCI:0000:06:00.0): 22013, Fatal, Link 4 Minion Link DLREQ interrupt", "22013", "AskDriver", "4"),
        ("SXid (PCI:0000:06:00.0): 19077, Non-fatal, Link 20 Nvltlc Tx Lnk An1 Timeout Vc5", "19077", "None", "20"),
        ("SXid (PCI:0000:06:00.0): 77777, Fatal, Link 20 new", "77777", "AskDriver", "20"),
        ("SXid (PCI:0000:06:00.0): 77777, Link -1 new", "77777", "AskDriver", "-1"),
    ],
)
def test_sxid_lines_follow_catalog_and_severity(line: str, code: str, action: str, link: str | None) -> None:
    (finding,) = read(f"nvidia-nvswitch3: {line}")

    assert (finding.kind, finding.code, finding.action.value) == (FindingKind.SXID, code, action)
    assert finding.evidence.get(evidence.LINK) == link
    assert finding.evidence[evidence.NVSWITCH] == "nvidia-nvswitch3"


def test_uuid_printed_by_driver_is_evidence() -> None:
    (finding,) = read(
        "NVRM: GPU at PCI:0000:3b:00: GPU-12345678-1234-1234-1234-123456789abc",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, MMU Fault",
    )

    assert finding.evidence[evidence.GPU_UUID] == "GPU-12345678-1234-1234-1234-123456789abc"
    assert finding.device.uuid is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build",
        "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
        "NVRM: GPU at PCI:0000:3b:00: GPU-12345678-1234-1234-1234-123456789abc",
        "NVRM: GPU0 nvCheckFailedNoLog: Check failed: (status == NV_OK) @ gpu_user_shared_data.c:503",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): , pid=2280636",
        "NVRM: Xid (PCI:...): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:66:00): 31x",
        "NVRM: Xid (PCI:0000:66): 31, short address",
        "trainer: NVRM: Xid (PCI:0000:66:00): 31, pid=1, name=a, quoted",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013,  Data {0x0000002b, 0x0000002b}",
        "my disk has fallen off the bus",
        "NVRM: fallen off the bus and is not responding to commands.",
        "usb 1-1: USB disconnect, device number 2",
    ],
)
def test_other_line_gives_no_finding(line: str) -> None:
    assert read(line) == []


def test_control_characters_are_removed() -> None:
    (finding,) = read("NVRM: Xid (PCI:0000:41:00): 31, pid=1, name=a\x1b[31m, Ch\x00 8\x9b\nMMU\tFault")

    assert finding.process_name == "a [31m"
    assert finding.text == "Ch 8 MMU Fault"


@given(st.text(max_size=300) | st.text(max_size=100).map(lambda text: f"NVRM: Xid (PCI:0000:41:00){text}"))
def test_any_text_is_tolerated_and_only_xid_lines_give_findings(text: str) -> None:
    assert len(read(text)) <= int("Xid" in text or "fallen" in text or "Assertion" in text)


@given(
    domain=st.integers(0, 0xFFFF),
    bus=st.integers(0, 0xFF),
    code=st.integers(1, 400),
    pid=st.none() | st.integers(1, 2**22),
    name=st.none() | st.text(st.characters(codec="ascii", exclude_characters=",'<>", categories=["L", "N", "P", "Zs"])),
    instance=st.none() | st.integers(0, 14),
)
def test_written_xid_round_trips(
    domain: int, bus: int, code: int, pid: int | None, name: str | None, instance: int | None
) -> None:
    where = f"PCI:{domain:04x}:{bus:02x}:00" + (f" GPU-I:{instance:02}" if instance is not None else "")
    line = f"NVRM: Xid ({where}): {code}, pid={pid or '<unknown>'}, name={name or '<unknown>'}, Ch 00000001"

    parsed = xid.parse(line)

    assert parsed is not None
    assert (parsed.pci.domain, parsed.pci.bus, parsed.code) == (domain, bus, str(code))
    assert (parsed.pid, parsed.gpu_instance) == (pid, instance)
    assert parsed.name == ((name or "").strip() or None)
    assert parsed.text == "Ch 00000001"


def test_writers_own_messages_round_trip(tmp_path: Path) -> None:
    writer = kmsg.KmsgWriter(tmp_path / "kmsg")
    writer.write_xid(31, pci="0000:41:00", pid=7, name="trainer", text="MMU Fault", gpu_instance=2, compute_instance=0)
    writer.write_xid(79, pci="0000:41:00", text="GPU has fallen off the bus.")
    writer.write_recovery_action(2, pci="0000:41:00")

    texts = [line.partition(";")[2] for line in (tmp_path / "kmsg").read_text().splitlines()]

    assert [(finding.title, finding.pid, finding.action.value) for finding in read(*texts)] == [
        ("Xid 31", 7, "RestartApp"),
        ("Xid 79", None, "RebootNode"),
        ("Xid 154", None, "RebootNode"),
    ]


def test_hostile_line_does_not_stall_a_grammar() -> None:
    for seed in ("NVRM: Xid (PCI:0000:41:00): 1, name=", "NVRM: The NVIDIA GPU 0000:b3:00.0 ", "x" * 9, "<4>[ 1.1"):
        assert len(read(seed + " ,:" * 20_000 + "\x00")) <= 1
