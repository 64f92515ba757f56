"""Decide whether a node takes a pod, and how many: the scheduler's filters that distinguish domains. Pure.

Source: ``pkg/scheduler/framework/plugins/{tainttoleration,nodeaffinity,noderesources}`` and
``component-helpers/scheduling/corev1``. Ignored are pods that belong to no JobSet, volumes, ports, resource claims and
affinity between pods. So there may be less room than computed here; the scheduler then reports that on the pods.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from kubemend.controller.jobset.placement.model import Needs, Node, Requirement, Taint, Toleration

_NAME_FIELD: Final = "metadata.name"
_NONE: Final = Fraction(0)
_PLENTY: Final = 2**31 - 1
"""Number of pods that request nothing. (Those of the API request a place among a node's pods.)"""


def room(nodes: Iterable[Node], needs: Needs) -> int:
    """Return how many such pods these nodes take if nothing else runs there."""
    return sum(_fit(node, needs) for node in nodes if takes(node, needs))


def takes(node: Node, needs: Needs) -> bool:
    """Return whether such a pod may run on a node, if there is room."""
    return (
        node.usable
        and all(node.labels.get(key) == value for key, value in needs.selector)
        and all(any(_tolerates(each, taint) for each in needs.tolerations) for taint in node.taints)
        and (needs.terms is None or any(_holds(term, node) for term in needs.terms))
    )


def _fit(node: Node, needs: Needs) -> int:
    requested = ((name, amount) for name, amount in needs.requests if amount > 0)
    return min((int(node.allocatable.get(name, _NONE) // amount) for name, amount in requested), default=_PLENTY)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.exists or (bool(toleration.key) and toleration.value == taint.value))
    )


def _holds(term: tuple[Requirement, ...], node: Node) -> bool:
    """Return whether all of a term holds; an empty one matches no node."""
    return bool(term) and all(_matches(each, node) for each in term)


def _matches(requirement: Requirement, node: Node) -> bool:
    if requirement.of_field:
        found = node.name if requirement.key == _NAME_FIELD else None
    else:
        found = node.labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return found in requirement.values
        case "NotIn":
            return found not in requirement.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as operator:
            return _compares(found, operator, requirement.values)
        case _:
            return False


def _compares(found: str | None, operator: str, values: tuple[str, ...]) -> bool:
    try:
        have, limit = int(found or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if operator == "Gt" else have < limit
