"""The output of ``kubemend explain`` for codes and logs."""

import json

import pytest

from kubemend.agent.health.catalog import catalog_file, explain, fault_names
from kubemend.agent.health.catalog.catalog import Catalog


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_file.builtin()


def test_log_gives_one_object_per_finding(catalog: Catalog) -> None:
    lines = [
        "[    1.000000] usb 1-1: new device\n",
        "[  100.250000] NVRM: GPU at PCI:0000:41:00: GPU-12345678-1234-1234-1234-123456789abc\n",
        "[  100.500000] NVRM: Xid (PCI:0000:41:00 GPU-I:03): 31, pid=4242, name=my app, MMU Fault\n",
        "Jun 12 16:31:50 node trainer[9]: NVRM: Xid (PCI:0000:41:00): 79, quoted\n",
        "Jun 12 16:31:50 node kernel: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, Fatal, SOE HALT\n",
        "Jun 12 16:31:50 node kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n",
        "                             NVRM: (PCI ID: 10de:26b5) installed in this system has\n",
        "                             NVRM: fallen off the bus and is not responding to commands.\n",
    ]

    found = list(explain.findings_from_lines(lines, catalog=catalog))

    assert found[0] == {
        "source": "kernel-log",
        "kind": "Xid",
        "code": 31,
        "device": "0000:41:00.0",
        "gpu_instance": 3,
        "compute_instance": None,
        "pid": 4242,
        "name": "my app",
        "action": "RestartApp",
        "text": "MMU Fault",
        "meaning": "MMU fault",
        "boot_seconds": 100.5,
        "evidence": {"gpu_uuid": "GPU-12345678-1234-1234-1234-123456789abc"},
    }
    assert [(each["kind"], each["code"], each["device"]) for each in found[1:]] == [
        ("SXid", 26006, "0000:05:00.0"),
        ("FallenOffBus", None, "0000:b3:00.0"),
    ]
    assert all(json.loads(json.dumps(each)) == each for each in found)


def test_raw_kmsg_records_are_parsed(catalog: Catalog) -> None:
    (found,) = explain.findings_from_lines(["4,12,2500000,-;NVRM: Xid (PCI:0000:41:00): 46\n"], catalog=catalog)

    assert (found["code"], found["boot_seconds"]) == (46, 2.5)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("79", "Xid 79: GPU has fallen off the bus"),
        (" xid 79 ", "Xid 79: GPU has fallen off the bus"),
        ("XID:79", "Xid 79: GPU has fallen off the bus"),
        ("sxid 20034", "SXid 20034: NVSwitch link went down"),
        ("20034", "SXid 20034: NVSwitch link went down"),
        ("FallenOffBus", "FallenOffBus: GPU has fallen off the bus"),
        ("fallen off bus", "FallenOffBus: GPU has fallen off the bus"),
        ("recovery action 2", "RecoveryAction 2: node reboot"),
        ("NvmlError 14", "NvmlError 14: NVML error"),
        ("NicFatal", "NicFatal: NIC has failed"),
        ("nic fatal", "NicFatal: NIC has failed"),
        ("aer fatal", "AerFatal: fatal PCIe error"),
        ("149.4", "Xid 149.4: NVLink error (NETIR)"),
        ("xid 144.0", "Xid 144.0: NVLink error (SAW)"),
    ],
)
def test_code_is_explained_in_every_notation(catalog: Catalog, query: str, title: str) -> None:
    explanation = explain.explain_code(query, catalog=catalog)

    assert explanation.known
    assert explanation.text.startswith(title)


def test_explanation_has_meaning_remedy_causes_and_version(catalog: Catalog) -> None:
    text = explain.explain_code("45", catalog=catalog).text

    assert "action class    None" in text or "None" in text
    assert "launcher" in " ".join(text.split())
    assert "Xid 48" in text
    assert catalog.version in text
    assert max(map(len, text.splitlines())) <= 100


def test_explanation_shows_that_programs_cannot_continue(catalog: Catalog) -> None:
    assert "Programs on device none can continue" in explain.explain_code("79", catalog=catalog).text
    assert "Programs on device" not in explain.explain_code("48", catalog=catalog).text


def test_every_kind_without_codes_can_be_explained(catalog: Catalog) -> None:
    for kind in fault_names.CODELESS:
        assert explain.explain_code(kind.value, catalog=catalog).known, kind


def test_sub_code_is_explained_by_its_rules_and_default(catalog: Catalog) -> None:
    text = " ".join(explain.explain_code("149.4", catalog=catalog).text.split())

    assert "NETIR_LINK_EVT status 0x0: the link went down: alignment lost. Action class ResetDevice" in text
    assert "Otherwise as Xid 149: AskDriver" in text
    assert "149.4" in explain.explain_code("149", catalog=catalog).text


@pytest.mark.parametrize("query", ["149.63", "79.1", "xid 999.1"])
def test_sub_code_without_rules_is_unknown(catalog: Catalog, query: str) -> None:
    explanation = explain.explain_code(query, catalog=catalog)

    assert not explanation.known
    assert "Otherwise" in explanation.text


def test_thresholds_are_explained(catalog: Catalog) -> None:
    assert "2 within 24 h also call for Observe" in explain.explain_code("31", catalog=catalog).text
    assert "when not seen for 10 min" in explain.explain_code("NicHot", catalog=catalog).text


def test_findings_without_codes_and_of_several_devices_are_objects(catalog: Catalog) -> None:
    lines = [
        "[1.0] mlx5_core 0000:5c:00.0: poll_health:471:(pid 0): device's health compromised - reached miss count\n",
        "[2.0] mlx5_core 0000:5c:00.0: mlx5_health_try_recover:391:(pid 1): health recovery succeeded\n",
        "[3.0] INFO: task jfsmount:136986 blocked for more than 120 seconds.\n",
    ]

    found = list(explain.findings_from_lines(lines, catalog=catalog))

    assert [(each["kind"], each["code"], each["device"], each["pid"]) for each in found] == [
        ("NicFatal", None, "0000:5c:00.0", None),
        ("FaultOver", "NicFatal", "0000:5c:00.0", None),
        ("FaultOver", "NicTimeout", "0000:5c:00.0", None),
        ("HungTask", None, None, 136986),
    ]
    assert all(json.loads(json.dumps(each)) == each for each in found)


def test_unknown_code_is_explained_as_not_acted_on_alone(catalog: Catalog) -> None:
    explanation = explain.explain_code("xid 999", catalog=catalog)

    assert not explanation.known
    assert explanation.text.startswith("Xid 999: unknown")
    assert "Nothing is restarted" in explanation.text


@pytest.mark.parametrize(
    "query", ["", "   ", "79abc", "hello", "xid", "hello 79", "39-41", "-1", "7 9", "²", "1.x", "39-41.2", "a.1"]
)
def test_invalid_code_is_refused_in_one_line(catalog: Catalog, query: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        explain.explain_code(query, catalog=catalog)


def test_json_and_text_have_the_same_content(catalog: Catalog) -> None:
    explanation = explain.explain_code("79", catalog=catalog)

    reported = explanation.as_json()

    assert reported["title"] == explanation.text.splitlines()[0]
    assert reported["known"] is True
    rows = reported["rows"]
    assert isinstance(rows, list)
    assert [row["name"] for row in rows] == [name for name, _ in explanation.rows]
    assert json.loads(json.dumps(reported)) == reported
