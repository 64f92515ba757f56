"""The admission policies use the names of the code: a changed name fails here, not by refusals in a cluster."""

from typing import Final

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.reporters import event_objects, restart_counts, taint_rules
from kubemend.agent.restart import options
from kubemend.common import conditions as common_conditions
from kubemend.common import gangs
from kubemend.controller.certificates import keeper
from kubemend.controller.gangs import members
from kubemend.controller.hub import identity
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints, exclusive
from kubemend.controller.jobset.spec import model
from kubemend.controller.restarts import names
from kubemend.controller.settings import Settings
from tests.unit.daemonset import manifests

POLICIES: Final = {
    obj["metadata"]["name"].removeprefix("kubemend-"): obj["spec"]
    for obj in [*manifests.build(manifests.DEFAULT), *manifests.render(("restart-namespaces",))]
    if obj["kind"] == "ValidatingAdmissionPolicy"
}


def expressions(policy: str) -> str:
    """Return all expressions of a policy."""
    spec = POLICIES[policy]
    rules = [*spec["matchConditions"], *spec.get("variables", ()), *spec["validations"]]
    return "\n".join(each["expression"] for each in rules)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("agent-status", [conditions.PREFIX, restart_counts.ANNOTATION, identity.NODE_NAME]),
        ("agent-events", [event_objects.COMPONENT, identity.NODE_NAME]),
        (
            "agent-device-taints",
            [taint_rules.TAINT_KEY, taint_rules.MANAGED_BY, taint_rules.MANAGER, identity.NODE_NAME],
        ),
        ("controller-pods", [common_conditions.DISRUPTION_TARGET, common_conditions.DEVICE_FAILURE]),
        ("controller-pods", [members.RESTART, members.IN_PLACE, exclusive.GATE]),
        ("controller-nodes", [device_taints.TAINT, device_taints.EFFECT]),
        ("controller-jobsets", [model.MANAGED_BY, naming.JOBSET_NAME, Settings().namespace]),
        ("controller-own", [keeper.SECRET, keeper.CONFIG_MAP, Settings().lease_name, Settings().namespace]),
        ("rounds", [names.ROUND, names.ATTEMPT, names.EPOCH, names.GANG_UID]),
        ("restart-namespaces", [members.RESTART]),
    ],
)
def test_names_are_those_of_the_code(policy: str, named: list[str]) -> None:
    for name in named:
        assert f"'{name}'" in expressions(policy)


def test_the_caches_are_for_pods_that_opted_in() -> None:
    (policy,) = [obj for obj in manifests.render(("caches",)) if obj["kind"] == "MutatingAdmissionPolicy"]
    matched = "\n".join(each["expression"] for each in policy["spec"]["matchConditions"])
    for name in (members.RESTART, members.IN_PLACE, options.CACHE):
        assert f"'{name}'" in matched
    assert f"'{options.CACHE_SIZE}'" in str(policy)


def test_launcher_is_for_pods_that_name_containers() -> None:
    made = [obj for obj in manifests.render(("launcher",)) if obj["metadata"]["name"] == "kubemend-launcher"]
    policies = [obj for obj in made if obj["kind"].endswith("Policy")]
    assert len(policies) == 2
    for policy in policies:
        (matched,) = policy["spec"]["matchConditions"]
        assert f"'{options.LAUNCHER}'" in matched["expression"]
    assert f"'{options.LAUNCHER_OPTIONS}'" in str(policies)
    agent = manifests.agent()
    assert f"c.name == '{agent['name']}'" in str(policies), "whose image it is"


def test_all_conditions_of_agents_are_allowed() -> None:
    types = [conditions.DEVICES_HEALTHY, conditions.DEVICE_FAILURE, conditions.IN_PLACE_RESTART]
    assert all(each.startswith(conditions.PREFIX) for each in types)


def test_the_namespaces_label_is_the_same_everywhere() -> None:
    (binding,) = [
        obj for obj in manifests.render(("restart-namespaces",)) if obj["kind"] == "ValidatingAdmissionPolicyBinding"
    ]
    (selector,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert selector == {"key": members.RESTART, "operator": "NotIn", "values": ["allowed"]}
    assert f"labels['{members.RESTART}'].orValue('') == 'allowed'" in expressions("controller-pods")


def test_pod_groups_become_gangs_for_pods_that_opted_in_and_are_in_none() -> None:
    (policy,) = [obj for obj in manifests.render(("pod-groups",)) if obj["kind"] == "MutatingAdmissionPolicy"]
    matched = "\n".join(each["expression"] for each in policy["spec"]["matchConditions"])
    for name in (members.RESTART, members.IN_PLACE, gangs.GANG, gangs.JOBSET_NAME, gangs.JOB_INDEX, gangs.LWS_NAME):
        assert f"'{name}'" in matched
    (mutation,) = policy["spec"]["mutations"]
    assert f"'{gangs.GANG}'" in mutation["applyConfiguration"]["expression"]
