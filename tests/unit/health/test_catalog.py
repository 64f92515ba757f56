"""The catalog is complete and consistent, and inconsistencies are errors."""

from pathlib import Path

import pytest

from hack import catalog_doc
from kubemend.agent.health.catalog import catalog_file, fault_names
from kubemend.agent.health.catalog.catalog import AppCaused, Catalog, FaultKey
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source

DOES = "does: {None: a, Observe: o, RestartApp: b, AskDriver: c, ResetDevice: d, RebootNode: e, Replace: f}"
HEAD = f"schema: 1\nversion: 1\n{DOES}\nfaults:\n"
FAULT = "  - {kind: Xid, codes: 1, name: n, class: None, app_caused: no, meaning: m}\n"
CODELESS = FAULT.replace("Xid, codes: 1", "NicTimeout")
RULE = "{units: U, info: 0x1/0x3, statuses: 0x0, class: None, name: n}"
OFTEN = "{count: 2, within: 24h, class: Observe}"


def with_rule(rule: str) -> str:
    return HEAD + FAULT.replace("}", f", subcodes: [{rule}]}}")


def with_repeats(repeats: str) -> str:
    return HEAD + FAULT.replace("}", f", repeats: {repeats}}}")


def xid(code: int) -> FaultKey:
    return FaultKey(FindingKind.XID, str(code))


def finding(code: int, action: ActionClass) -> Finding:
    return Finding(
        source=Source.KERNEL_LOG,
        kind=FindingKind.XID,
        code=str(code),
        device=DeviceLocator(),
        action=action,
        observed_at=0.0,
    )


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_file.builtin()


XIDS_BY_CLASS = {
    ActionClass.NONE: "37, 38, 44, 45, 63, 65-67, 92, 93, 106, 107, 121, 141, 152, 153, 157, 160-165, 185",
    ActionClass.RESTART_APP: (
        "8, 11, 13, 25, 31, 32, 39-41, 43, 60, 68-72, 75-77, 80, 82-86, 88, 89, 94, 96-105, 108, 126-135, 137, 139"
    ),
    ActionClass.ASK_DRIVER: "48, 61, 74, 109, 123, 144-149, 154, 159, 166, 168-173",
    ActionClass.RESET_DEVICE: "46, 62, 95, 110, 119, 120, 136, 140, 143, 150, 155, 156, 158",
    ActionClass.REBOOT_NODE: "79, 151, 167",
    ActionClass.REPLACE: "54, 64, 78, 142",
}


def test_xids_are_events_without_an_end_of_their_own(catalog: Catalog) -> None:
    assert not [
        key
        for key, entry in catalog.entries.items()
        if key.kind is FindingKind.XID and entry.action is ActionClass.OBSERVE
    ]


@pytest.mark.parametrize("action", XIDS_BY_CLASS)
def test_every_known_xid_has_its_class(catalog: Catalog, action: ActionClass) -> None:
    listed = {
        key.code for key, entry in catalog.entries.items() if key.kind is FindingKind.XID and entry.action is action
    }

    assert listed == set(fault_names.codes(XIDS_BY_CLASS[action]))


@pytest.mark.parametrize(
    ("value", "action"),
    [
        (0, ActionClass.NONE),
        (1, ActionClass.RESET_DEVICE),
        (2, ActionClass.REBOOT_NODE),
        (3, ActionClass.RESET_DEVICE),
        (4, ActionClass.RESET_DEVICE),
        (5, ActionClass.ASK_DRIVER),
        (6, ActionClass.RESET_DEVICE),
        (7, ActionClass.REBOOT_NODE),
        (8, ActionClass.ASK_DRIVER),
    ],
)
def test_recovery_actions_have_their_classes(catalog: Catalog, value: int, action: ActionClass) -> None:
    assert catalog.action(FaultKey(FindingKind.RECOVERY_ACTION, str(value))) is action


def test_unknown_code_is_never_acted_on_alone(catalog: Catalog) -> None:
    assert catalog.action(xid(999)) is ActionClass.ASK_DRIVER
    assert not catalog.action(xid(999)).leaves_device_usable


def test_lost_device_needs_reboot_with_any_code(catalog: Catalog) -> None:
    assert catalog.action(FaultKey(FindingKind.DEVICE_LOST)) is ActionClass.REBOOT_NODE
    assert catalog.action(FaultKey(FindingKind.DEVICE_LOST, "15")) is ActionClass.REBOOT_NODE


@pytest.mark.parametrize("code", [32, 38, 44, 69, 94, 109, 121, 136])
def test_disputed_codes_have_an_explained_entry(catalog: Catalog, code: int) -> None:
    entry = catalog.find(xid(code))

    assert entry is not None
    assert entry.meaning
    assert entry.nvidia


def test_effect_is_suppressed_by_its_cause_only(catalog: Catalog) -> None:
    cleanup = finding(45, ActionClass.RESTART_APP)

    assert catalog.is_side_effect(finding(48, ActionClass.ASK_DRIVER), cleanup)
    assert not catalog.is_side_effect(cleanup, finding(48, ActionClass.ASK_DRIVER))
    assert not catalog.is_side_effect(finding(63, ActionClass.NONE), cleanup)


def test_power_smoothing_on_again_cancels_power_smoothing_off(catalog: Catalog) -> None:
    assert catalog.cancels(xid(162)) == {xid(163)}
    assert catalog.cancels(xid(163)) == frozenset()
    assert catalog.cancels(xid(999)) == frozenset()


def test_more_severe_finding_is_never_suppressed(catalog: Catalog) -> None:
    assert not catalog.is_side_effect(finding(144, ActionClass.NONE), finding(45, ActionClass.RESTART_APP))
    assert not catalog.is_side_effect(finding(48, ActionClass.ASK_DRIVER), finding(95, ActionClass.RESET_DEVICE))


def test_no_effect_in_catalog_is_more_severe_than_its_cause(catalog: Catalog) -> None:
    for entry in catalog.entries.values():
        for cause in entry.effect_of:
            assert entry.action.severity <= catalog.entries[cause].action.severity, f"{entry.key} of {cause}"
            assert entry.key in catalog.effects(cause)


def test_severity_in_line_decides_where_entry_allows(catalog: Catalog) -> None:
    assert catalog.action(xid(145), severity="Non-fatal") is ActionClass.NONE
    assert catalog.action(xid(145), severity="Fatal") is ActionClass.ASK_DRIVER
    assert catalog.action(xid(31), severity="Fatal") is ActionClass.RESTART_APP
    assert catalog.action(FaultKey(FindingKind.SXID, "23001"), severity="Non-fatal") is ActionClass.REBOOT_NODE


def test_overrides_change_only_what_they_name(catalog: Catalog) -> None:
    merged = catalog_file.merged(
        catalog,
        "schema: 1\nversion: site7\nfaults:\n"
        "  - {kind: Xid, codes: '94', class: ResetDevice}\n"
        "  - {kind: Xid, codes: 900, name: ours, class: Replace, app_caused: no, meaning: seen here}\n",
    )

    assert merged.version == f"{catalog.version}+site7"
    changed = {key for key, entry in merged.entries.items() if catalog.entries.get(key) != entry}
    assert changed == {xid(94), xid(900)}
    entry = merged.entries[xid(94)]
    assert entry.action is ActionClass.RESET_DEVICE
    assert entry.name == "contained memory error"
    assert merged.reaction(entry) == merged.does[ActionClass.RESET_DEVICE]
    assert catalog.action(xid(94)) is ActionClass.RESTART_APP


def test_only_the_loss_of_a_gpu_ends_all_programs(catalog: Catalog) -> None:
    ending = {key for key in catalog.entries if catalog.ends_programs(key)}
    assert ending == {xid(79), FaultKey(FindingKind.OFF_BUS), FaultKey(FindingKind.DEVICE_LOST)}
    assert not catalog.ends_programs(xid(999))


@pytest.mark.parametrize(
    ("code", "may"), [("13", False), ("31", False), ("43", False), ("94", True), ("39", True), ("8", True), ("9", True)]
)
def test_graver_fault_may_follow_faults_that_no_program_causes_and_unknown_ones(
    catalog: Catalog, code: str, may: bool
) -> None:
    assert catalog.may_follow_graver(FaultKey(FindingKind.XID, code)) is may


def test_operator_may_set_ends_programs(catalog: Catalog) -> None:
    merged = catalog_file.merged(
        catalog,
        "schema: 1\nfaults:\n"
        "  - {kind: Xid, codes: 79, class: Observe}\n"
        "  - {kind: Xid, codes: 167, ends_programs: true}\n"
        "  - {kind: DeviceLost, ends_programs: false}\n",
    )
    assert {key for key in merged.entries if merged.ends_programs(key)} == {xid(167), FaultKey(FindingKind.OFF_BUS)}


def test_codes_are_read_as_written_not_as_yaml_numbers() -> None:
    catalog = catalog_file.parse(HEAD + FAULT.replace("codes: 1,", "codes: [7, 39-41],"))

    assert {key.code for key in catalog.entries} == {"7", "39", "40", "41"}
    assert next(iter(catalog.entries.values())).app_caused is AppCaused.NO


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "not a mapping", id="empty"),
        pytest.param("a: [", "not YAML", id="syntax"),
        pytest.param("schema: 2\n", "'schema: 1'", id="schema"),
        pytest.param("schema: 1\nversion: 1\nfaults: []\n", "does missing", id="no texts"),
        pytest.param("schema: 1\nschema: 1\n", "line 2: 'schema' is given twice", id="key twice at the top"),
        pytest.param(HEAD.replace("RestartApp: b, ", "") + FAULT, "'does' lacks RestartApp", id="class without text"),
        pytest.param(HEAD.replace("Replace", "Burn") + FAULT, "'Burn' is unknown", id="text for no class"),
        pytest.param(HEAD + "  - nothing\n", "line 5: a fault is not a mapping", id="fault not a mapping"),
        pytest.param(HEAD + FAULT + FAULT, "line 6: Xid 1 is already in line 5", id="duplicate code"),
        pytest.param(
            HEAD + FAULT.replace("class: None", "class: Reboot"), "line 5: class 'Reboot'", id="unknown class"
        ),
        pytest.param(HEAD + FAULT.replace("kind: Xid", "kind: Zid"), "line 5: kind 'Zid'", id="unknown kind"),
        pytest.param(
            HEAD + FAULT.replace("app_caused: no", "app_caused: si"), "app_caused 'si'", id="unknown app_caused"
        ),
        pytest.param(HEAD + FAULT.replace("name: n, ", ""), "lacks 'name'", id="field missing"),
        pytest.param(HEAD + FAULT.replace("name: n", "nmae: n"), "unknown field 'nmae'", id="field misspelt"),
        pytest.param(
            HEAD + FAULT.replace("name: n", "name: {a: b}"), "line 5: a field is a mapping", id="nested field"
        ),
        pytest.param(HEAD + FAULT.replace("codes: 1", "codes: one"), "neither a code nor a range", id="bad code"),
        pytest.param(HEAD + FAULT.replace("codes: 1", "codes: 9-1"), "empty or longer", id="backward range"),
        pytest.param(HEAD + FAULT.replace("codes: 1", "codes: 1-999"), "empty or longer", id="endless range"),
        pytest.param(HEAD + FAULT.replace("codes: 1, ", ""), "Xid lacks codes", id="no codes"),
        pytest.param(
            HEAD + FAULT.replace("kind: Xid", "kind: DeviceLost"), "has no codes", id="codes for a codeless kind"
        ),
        pytest.param(HEAD + FAULT.replace("}", ", effect_of: 2}"), "Xid 1 links to Xid 2", id="dangling cause"),
        pytest.param(HEAD + FAULT.replace("}", ", cancels: SXid 2}"), "Xid 1 links to SXid 2", id="dangling cancel"),
        pytest.param(HEAD + FAULT.replace("}", ", effect_of: 1}"), "its own cause", id="own cause"),
        pytest.param(HEAD + FAULT.replace("}", ", effect_of: Foo 1}"), "'Foo' is not a kind", id="link to no kind"),
        pytest.param(HEAD + FAULT.replace("}", ", word_decides: maybe}"), "true or false", id="bad flag"),
        pytest.param(HEAD + FAULT.replace("}", ", ends_programs: true}"), "Xid 1 ends programs, but", id="mild end"),
        pytest.param(
            with_rule(RULE).replace("class: None, app", "class: RebootNode, ends_programs: true, app"),
            "Xid 1 ends programs, but",
            id="mild end by a sub-code",
        ),
        pytest.param(
            HEAD + FAULT.replace("}", ", subcodes: yes}"), "'subcodes' is not a list", id="sub-codes not a list"
        ),
        pytest.param(with_rule("no"), "line 5: a sub-code is not a mapping", id="sub-code not a mapping"),
        pytest.param(with_rule(RULE.replace("name: n", "nmae: n")), "unknown field 'nmae'", id="sub-code misspelt"),
        pytest.param(with_rule(RULE.replace(", name: n", "")), "a sub-code lacks 'name'", id="sub-code without name"),
        pytest.param(with_rule(RULE.replace("units: U", "units: u-1")), "'u-1' is not a unit", id="bad unit"),
        pytest.param(with_rule(RULE.replace("class: None", "class: Nix")), "class 'Nix'", id="sub-code class"),
        pytest.param(with_rule(RULE.replace("0x0", "7")), "'7' is not a 32-bit register", id="bad status"),
        pytest.param(with_rule(RULE.replace("0x1/0x3", "0x4/0x3")), "can never match", id="value beyond mask"),
        pytest.param(with_rule(RULE.replace("}", ", numbers: 64}")), "does not fit into six bits", id="large number"),
        pytest.param(with_rule(RULE.replace("}", ", numbers: x}")), "numbers: 'x'", id="bad number"),
        pytest.param(with_rule(RULE.replace("name: n", "name: n, name: m")), "'name' is given twice", id="rule twice"),
        pytest.param(with_repeats("2"), "'repeats' is not a mapping", id="repeats not a mapping"),
        pytest.param(with_repeats(OFTEN.replace("2,", "1,")), "count '1' is not a count", id="once is no repetition"),
        pytest.param(with_repeats(OFTEN.replace("24h", "1 day")), "within '1 day' is not a duration", id="bad span"),
        pytest.param(with_repeats(OFTEN.replace("Observe", "Watch")), "class 'Watch'", id="repeats class"),
        pytest.param(with_repeats(OFTEN.replace("}", ", same: color}")), "'color' is not a place", id="bad place"),
        pytest.param(
            HEAD + CODELESS.replace("}", ", over_after: 0s}"), "over_after '0s' is not a duration", id="no span"
        ),
        pytest.param(
            HEAD + FAULT.replace("}", ", over_after: 1h}"),
            "Xid 1 has a code, and over_after would end",
            id="span of code",
        ),
        pytest.param(HEAD + "  - {kind: Xid, kind: Xid}\n", "line 5: 'kind' is given twice", id="field twice"),
        pytest.param("schema: 1\nversion: 1\nfaults: {}\n" + DOES, "'faults' is not a list", id="faults not a list"),
    ],
)
def test_inconsistent_catalog_stops_the_load_with_hint(text: str, complaint: str) -> None:
    with pytest.raises(catalog_file.CatalogError) as caught:
        catalog_file.parse(text)

    message = str(caught.value)
    assert complaint in message
    assert message.startswith("catalog")
    assert ": " in message
    assert "\n" not in message


def test_override_of_unknown_code_must_be_complete(catalog: Catalog) -> None:
    with pytest.raises(catalog_file.CatalogError, match="line 3: Xid 900 lacks 'name'"):
        catalog_file.merged(catalog, "schema: 1\nfaults:\n  - {kind: Xid, codes: 900, class: None}\n")


def test_catalog_page_is_current() -> None:
    assert catalog_doc.PAGE.read_text("utf-8") == catalog_doc.render(catalog_file.builtin())


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff\xfe", "not UTF-8"), (b"schema: 2\n", "schema is 2"), (None, "No such file or directory")],
)
def test_file_of_changes_that_cannot_be_used_is_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(catalog_file.CatalogError, match=problem):
        catalog_file.load(file)
