"""Sub-codes of fifth-generation NVLinks: the registers in the line decide, by the rules of the catalog."""

import pytest

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.catalog.subcodes import Registers
from kubemend.agent.health.kmsg import line_reader
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind
from tests.unit.health.reading import SEEN, read_one

NETIR_LINK_DOWN_SINCE_R575 = 0x011
XID_149 = FaultKey(FindingKind.XID, "149")


def line(code: int, unit: str, word: str, info: int, status: int, *, link: str = "00") -> str:
    return (
        f"NVRM: Xid (PCI:0000:04:00): {code}, {unit} {word} XC0 i0 Link {link} ({info:#010x} {status:#010x} 0x00000000)"
    )


def with_catalog(catalog: Catalog, text: str) -> Finding:
    (finding,) = line_reader.LineReader(catalog).read(text, seen=SEEN)
    return finding


@pytest.mark.parametrize(
    ("code", "unit", "word", "info", "status", "action"),
    [
        pytest.param(144, "SAW_MVB", "Nonfatal", 0x00000001, 0x4, "None", id="144 handled"),
        pytest.param(144, "SAW_MVB", "Fatal", 0x00000001, 0x2, "ResetDevice", id="144 fatal"),
        pytest.param(144, "SAW_MVB", "Fatal", 0x0005B821, 0x2, "ResetDevice", id="144 fatal, before R575"),
        pytest.param(145, "RLW_REMAP", "Nonfatal", 0x00000004, 0x1, "AskDriver", id="145 asks the driver"),
        pytest.param(145, "RLW_REMAP", "Nonfatal", 0x00000004, 0x100, "None", id="145 handled"),
        pytest.param(145, "RLW_RXPIPE", "Nonfatal", 0x00000006, 0x1, "None", id="145 bit that must be clear is"),
        pytest.param(145, "RLW_TAGSTATE", "Fatal", 0x00000008, 0x100000, "ResetDevice", id="145 fatal"),
        pytest.param(146, "TLW_RX/TLW_RX_PIPE0", "Fatal", 0x0000000A, 0x4, "ResetDevice", id="146 both names"),
        pytest.param(146, "TLW_TX_PIPE1", "Nonfatal", 0x0000000D, 0x80000000, "None", id="146 one name"),
        pytest.param(147, "TREX", "Nonfatal", 0x0000000E, 0x1, "None", id="147"),
        pytest.param(148, "NVLPW", "Nonfatal", 0x0000000F, 0x80000000, "None", id="148"),
        pytest.param(149, "NETIR_LINK_EVT", "Fatal", 0x004505C6, 0x0, "ResetDevice", id="149.4, before R575"),
        pytest.param(149, "NETIR_LINK_EVT", "Fatal", 0x021425C6, 0x0, "ResetDevice", id="149.33, before R575"),
        pytest.param(149, "NETIR_LINK_DOWN", "Fatal", 0x02500011, 0x0, "ResetDevice", id="149.37"),
        pytest.param(149, "NETIR_LINK_EVT", "Fatal", 0x026001C6, 0x0, "AskDriver", id="149.38 ignored, but fatal"),
        pytest.param(149, "NETIR_BER_EVENT", "Nonfatal", 0x00000013, 0x1, "None", id="149 bit errors"),
        pytest.param(149, "NETIR_MFDE_EVENT", "Nonfatal", 0x00000014, 0x3, "None", id="149 firmware notice"),
        pytest.param(150, "MSE_WATCHDOG", "Fatal", 0x00000000, 0x0, "ResetDevice", id="150"),
    ],
)
def test_rule_for_the_registers_decides(code: int, unit: str, word: str, info: int, status: int, action: str) -> None:
    finding = read_one(line(code, unit, word, info, status))

    assert (finding.code, finding.action.value) == (str(code), action)
    assert finding.evidence[evidence.SUBCODE] == str(info >> 20 & 63)
    assert finding.evidence[evidence.SUBCODE_NAME]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        pytest.param(line(149, "NETIR_LINK_EVT", "Fatal", 0x03F001C6, 0), "AskDriver", id="number without a rule"),
        pytest.param(line(149, "NETIR_LINK_EVT", "Fatal", 0x004001C6, 9), "AskDriver", id="status without a rule"),
        pytest.param(line(149, "NETIR_NEW", "Fatal", 0x004001C6, 0), "AskDriver", id="unit without a rule"),
        pytest.param(line(149, "NETIR_LINK_EVT", "Fatal", 0x00400013, 0), "AskDriver", id="bits of another unit"),
        pytest.param(
            line(144, "SAW_MVB", "Nonfatal", 0x00000001, 0x800), "None", id="not fatal by the driver's severity"
        ),
        pytest.param(
            line(145, "RLW_RXPIPE", "Fatal", 0x00000086, 0x1), "AskDriver", id="bit that must be clear is set"
        ),
    ],
)
def test_unknown_sub_code_is_decided_by_entry_and_severity(text: str, action: str) -> None:
    finding = read_one(text)

    assert finding.action.value == action
    assert evidence.SUBCODE in finding.evidence
    assert evidence.SUBCODE_NAME not in finding.evidence


def test_fatal_severity_is_never_lowered_to_none_by_a_rule() -> None:
    assert read_one(line(144, "SAW_MVB", "Fatal", 0x1, 0x4)).action is ActionClass.ASK_DRIVER


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x004505c6 0x000",
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x004505c6)",
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 [0x004505c6]",
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal",
    ],
)
def test_line_truncated_before_registers_has_no_sub_code(text: str) -> None:
    finding = read_one(text)

    assert finding.action is ActionClass.ASK_DRIVER
    assert evidence.SUBCODE not in finding.evidence


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:04:00): 149, pid=7, name=python3, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x0)",
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Link Fatal XC 1 i 2 Link 08 (0x004505c6 0x00000000)",
    ],
)
def test_link_is_evidence_in_every_form_of_the_line(text: str) -> None:
    finding = read_one(text)

    assert finding.evidence[evidence.LINK] == "08".lstrip("0")
    assert finding.evidence[evidence.SUBCODE_NAME] == "the link went down: alignment lost"


def test_operators_rules_precede_built_in_rules() -> None:
    catalog = catalog_file.merged(
        catalog_file.builtin(),
        "schema: 1\nfaults:\n  - kind: Xid\n    codes: 149\n    subcodes:\n"
        "      - {units: NETIR_LINK_EVT, info: 0x1c6/0x3ff, numbers: 4, statuses: 0x0, class: Replace, name: ours}\n",
    )

    ours = with_catalog(catalog, line(149, "NETIR_LINK_EVT", "Fatal", 0x004505C6, 0))
    theirs = with_catalog(catalog, line(149, "NETIR_LINK_EVT", "Fatal", 0x00A505C6, 0))

    assert (ours.action, ours.evidence[evidence.SUBCODE_NAME]) == (ActionClass.REPLACE, "ours")
    assert theirs.action is ActionClass.RESET_DEVICE


def test_operators_class_applies_to_every_sub_code() -> None:
    catalog = catalog_file.merged(
        catalog_file.builtin(), "schema: 1\nfaults:\n  - {kind: Xid, codes: 149, class: Replace}\n"
    )

    assert with_catalog(catalog, line(149, "NETIR_LINK_EVT", "Fatal", 0x004505C6, 0)).action is ActionClass.REPLACE


def test_every_rule_can_be_reached() -> None:
    """No rule is shadowed by an earlier one, for either encoding of its unit."""
    catalog = catalog_file.builtin()
    rules = [(key, rule) for key, entry in catalog.entries.items() for rule in entry.subcodes]
    for key, rule in rules:
        for bits in rule.info:
            for number in rule.numbers:
                for status in rule.statuses:
                    for unit in rule.units:
                        registers = Registers(unit=unit, info=number << 20 | bits.value, status=status)
                        assert catalog.subcode(key, registers) == rule, f"{key} {registers}"
    assert len(rules) == 49
