"""What a role allows, right by right."""

from itertools import product

from agent.doctor.api_rights import Right
from tests.unit.daemonset.manifests import Json


def rights(role: Json) -> set[Right]:
    """Return what a ClusterRole allows; fails on a rule that is limited further."""
    rules = role["rules"]
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in rules)
    return {
        Right(verb, *_split(resource, group))
        for rule in rules
        for verb, resource, group in product(rule["verbs"], rule["resources"], rule["apiGroups"])
    }


def _split(resource: str, group: str) -> tuple[str, str, str]:
    name, _, subresource = resource.partition("/")
    return name, group, subresource
