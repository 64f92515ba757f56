import re
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import ClaimDevice
from kubemend.agent.reporters import taint_rules
from kubemend.agent.reporters.taint_rules import Plan, Rule

NODE = "node-1"
GPU_0 = ClaimDevice("gpu.nvidia.com", NODE, "gpu-0")
GPU_1 = ClaimDevice("gpu.nvidia.com", NODE, "gpu-1")
PUBLISHED = {GPU_0: frozenset({"GPU-a"}), GPU_1: frozenset({"GPU-b"})}


def verdict(device: str, health: Health, *, reason: str = "Xid79") -> Verdict:
    return Verdict(device, health, ActionClass.REBOOT_NODE, reason, "")


def plan(
    *verdicts: Verdict,
    published: Mapping[ClaimDevice, frozenset[str]] = PUBLISHED,
    rules: Mapping[str, Rule] | None = None,
) -> Plan:
    return taint_rules.plan(verdicts=verdicts, published=published, rules=rules or {}, node=NODE)


def rule_of(device: ClaimDevice, *, known_as: str = "GPU-a", reason: str = "Xid79") -> dict[str, Rule]:
    return {taint_rules.name(device, node=NODE): Rule(device, known_as, reason)}


def test_only_the_unhealthy_device_gets_a_rule() -> None:
    found = plan(verdict("GPU-a", Health.UNHEALTHY), verdict("GPU-b", Health.DEGRADED))
    assert found == Plan(create=rule_of(GPU_0), change={}, delete=[])


def test_correct_rule_is_left_alone() -> None:
    assert plan(verdict("GPU-a", Health.UNHEALTHY), rules=rule_of(GPU_0)) == Plan({}, {}, [])


def test_rule_follows_the_reason() -> None:
    found = plan(verdict("GPU-a", Health.UNHEALTHY, reason="Xid48"), rules=rule_of(GPU_0))
    assert found == Plan({}, rule_of(GPU_0, reason="Xid48"), [])


def test_rule_has_the_reason_of_the_worst_fault() -> None:
    severe = verdict("GPU-a", Health.UNHEALTHY)
    mild = Verdict("MIG-z", Health.UNHEALTHY, ActionClass.RESTART_APP, "Xid48", "")
    assert severe.action.severity > mild.action.severity
    found = plan(mild, severe, published={GPU_0: frozenset({"GPU-a", "MIG-z"})})
    assert found.create == rule_of(GPU_0)


def test_no_two_devices_share_a_rule() -> None:
    every = [
        ClaimDevice(driver, pool, device)
        for driver in ("gpu.nvidia.com", "nic.example.com")
        for pool in ("a", "b")
        for device in ("gpu-0", "gpu-1")
    ]
    assert len({taint_rules.name(device, node=node) for device in every for node in ("node-1", "node-2")}) == 16


def test_rule_is_deleted_once_the_device_is_usable() -> None:
    for health in (Health.HEALTHY, Health.DEGRADED):
        assert plan(verdict("GPU-a", health), rules=rule_of(GPU_0)).delete == list(rule_of(GPU_0))


def test_unknown_state_leaves_the_rule() -> None:
    assert plan(verdict("GPU-a", Health.UNKNOWN), rules=rule_of(GPU_0)).delete == []
    assert plan(rules=rule_of(GPU_0)).delete == []


def test_driver_without_devices_leaves_the_rule() -> None:
    assert plan(verdict("GPU-a", Health.UNHEALTHY), published={}, rules=rule_of(GPU_0)) == Plan({}, {}, [])
    assert plan(published={}, rules=rule_of(GPU_0)) == Plan({}, {}, [])


def test_rule_is_deleted_when_another_device_has_the_name() -> None:
    swapped = {GPU_0: frozenset({"GPU-new"})}
    assert plan(verdict("GPU-a", Health.UNKNOWN), published=swapped, rules=rule_of(GPU_0)).delete == list(
        rule_of(GPU_0)
    )


def test_rule_of_an_unhealthy_device_stays_while_it_is_published_without_names() -> None:
    nameless = {GPU_0: frozenset[str]()}
    assert plan(verdict("GPU-a", Health.UNHEALTHY), published=nameless, rules=rule_of(GPU_0)) == Plan({}, {}, [])
    assert plan(published=nameless, rules=rule_of(GPU_0)).delete == list(rule_of(GPU_0))


def test_rule_for_an_unknown_device_is_deleted() -> None:
    assert plan(published={GPU_1: frozenset({"GPU-b"})}, rules=rule_of(GPU_0)).delete == list(rule_of(GPU_0))


def test_whole_gpu_fault_covers_all_its_mig_devices() -> None:
    published = {GPU_0: frozenset({"MIG-1", "GPU-a"}), GPU_1: frozenset({"MIG-2", "GPU-a"})}
    assert plan(verdict("GPU-a", Health.UNHEALTHY), published=published).create == rule_of(GPU_0) | rule_of(GPU_1)


_rules = st.dictionaries(
    st.sampled_from([GPU_0, GPU_1]), st.sampled_from(["GPU-a", "GPU-b", "GPU-c", ""]), max_size=2
).map(
    lambda found: {
        taint_rules.name(device, node=NODE): Rule(device, known_as, "R") for device, known_as in found.items()
    }
)
_verdicts = st.lists(
    st.builds(verdict, st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), st.sampled_from(Health)),
    unique_by=lambda found: found.device,
)
_published = st.dictionaries(
    st.sampled_from([GPU_0, GPU_1]), st.sampled_from([frozenset({"GPU-a"}), frozenset({"GPU-b"}), frozenset()])
)


@given(verdicts=_verdicts, published=_published, rules=_rules)
def test_one_plan_gives_every_unhealthy_device_its_rule(
    verdicts: Sequence[Verdict], published: dict[ClaimDevice, frozenset[str]], rules: dict[str, Rule]
) -> None:
    found = plan(*verdicts, published=published, rules=rules)
    after = {key: rule for key, rule in {**rules, **found.create, **found.change}.items() if key not in found.delete}
    assert plan(*verdicts, published=published, rules=after) == Plan({}, {}, [])
    unhealthy = {each.device for each in verdicts if each.health is Health.UNHEALTHY}
    for device, names in published.items():
        rule = after.get(taint_rules.name(device, node=NODE))
        assert not (names & unhealthy) or (rule is not None and rule.known_as in unhealthy)


def test_rule_survives_a_round_trip() -> None:
    (key, rule), *_ = rule_of(GPU_0).items()
    obj = taint_rules.rule_object(rule, node=NODE, node_uid="n")
    assert obj["metadata"]["name"] == key
    assert taint_rules.of_object(obj) == rule


def test_long_names_become_valid_labels() -> None:
    selector = taint_rules.selector("n" * 253)
    assert re.fullmatch(r"app.kubernetes.io/managed-by=kubemend,kubemend.io/node=\w{1,63}", selector)
    found = plan(verdict("GPU-a", Health.UNHEALTHY, reason="R" * 100))
    (rule,) = found.create.values()
    assert len(rule.reason) <= 63
    assert plan(verdict("GPU-a", Health.UNHEALTHY, reason="R" * 100), rules=found.create) == Plan({}, {}, [])
