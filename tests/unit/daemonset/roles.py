"""List the rights of a role."""

from itertools import product

from kubemend.agent.doctor.api_rights import Right
from tests.unit.daemonset.manifests import Json


def rights(role: Json) -> set[Right]:
    """Return the rights of a ClusterRole; fails on a rule that is limited further."""
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
