"""Assign domains to Jobs. Pure.

A domain is assigned to one Job only. It is free if no pod of another Job is in it or assigned to it, by any
topology. Of the free domains that are large enough a Job gets the one with the least room, so
that large ones are left for large Jobs. It keeps the domain as long as any of its pods does, but one that only pods
being deleted hold must suit its new pods: Kueue may have admitted it to other nodes since.

A node takes a pod by the scheduler's filters that distinguish domains. Source: ``pkg/scheduler/framework/plugins``
(``tainttoleration``, ``nodeaffinity``, ``noderesources``) and ``component-helpers/scheduling/corev1``. Ignored are pods
that belong to no JobSet, volumes, ports, resource claims and affinity between pods. So there may be less room than
computed here; the scheduler then reports that on the pods.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import exclusive
from kubemend.controller.jobset.placement.model import (
    Assignment,
    Domain,
    Needs,
    Node,
    Placements,
    Pod,
    Reason,
    Requirement,
    Seeker,
    Taint,
    Toleration,
    Waiting,
)
from kubemend.controller.jobset.spec.model import ChildJob

_Room = tuple[int, str]
"""How many pods a domain takes, and its value: domains are tried in this order."""


def seeker(namespace: str, job: ChildJob) -> Seeker:
    """Return a Job as one whose pods may wait."""
    most = job.parallelism if job.completions is None else min(job.parallelism, job.completions - job.succeeded)
    return Seeker(naming.job_key(namespace, job.name), f"{namespace}/{job.name}", max(most, 0))


def place(
    seekers: Iterable[Seeker],
    *,
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    promised: Mapping[str, Domain],
) -> Placements:
    """Return where the waiting pods may go, Job by Job in the order of ``seekers``, and which Jobs must still wait.

    ``pods`` are those of all JobSets' Jobs, including JobSets of other controllers; pods of Jobs that are not among the
    seekers only occupy domains. ``promised``, by Job: domains assigned earlier that the pods do not show yet.
    """
    every = tuple(pods)
    waiting: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in every:
        if exclusive.waits(pod):
            waiting[pod.job].append(pod)
    board = _Board(tuple(nodes), every, promised)
    assigned: list[Assignment] = []
    unplaced: list[Waiting] = []
    for each in seekers:
        gated = sorted(waiting.pop(each.job, ()), key=lambda pod: pod.name)
        if not gated:
            continue
        found = board.choose(each, gated[0])
        if isinstance(found, Waiting):
            unplaced.append(found)
        else:
            assigned.append(Assignment(each.job, found, tuple(pod for pod in gated if pod.topology == found.topology)))
    return Placements(tuple(assigned), tuple(unplaced))


class _Board:
    """Occupied domains during one run of ``place``. A chosen domain is occupied at once, and stays so."""

    def __init__(self, nodes: Sequence[Node], pods: Iterable[Pod], promised: Mapping[str, Domain]) -> None:
        self._nodes = nodes
        self._by_name = {node.name: node for node in nodes}
        self._domains: dict[str, dict[Domain, tuple[Node, ...]]] = {}
        self._rooms: dict[tuple[str, Needs], list[_Room]] = {}
        self._left: dict[tuple[str, Needs], list[_Room]] = {}
        self._taken: set[str] = set()
        self._own: defaultdict[str, Counter[Domain]] = defaultdict(Counter)
        for pod in pods:
            if not pod.over:
                self._occupy(pod)
        for job, domain in promised.items():
            self._hold(job, domain)

    def choose(self, seeker: Seeker, pod: Pod) -> Domain | Waiting:
        """Return the domain of a Job, of whose waiting pods this is one, and hold it."""
        own = [(-count, domain) for domain, count in self._own[seeker.job].items() if domain.topology == pod.topology]
        for count, domain in sorted(own):
            if count or any(_is_meant(node, pod.needs) for node in self._of(pod.topology).get(domain, ())):
                return domain  # it is chosen already; the scheduler decides whether there is room for another pod
        rooms, left = self._sized(pod)
        smallest = (seeker.pods, "")
        index = bisect.bisect_left(left, smallest)
        while index < len(left):
            domain = Domain(pod.topology, left.pop(index)[1])  # free or not, no other Job gets it after this
            if self._is_free(domain):
                self._hold(seeker.job, domain)
                return domain
        return _waiting(
            seeker, pod.topology, domains=len(rooms), large=len(rooms) - bisect.bisect_left(rooms, smallest)
        )

    def _occupy(self, pod: Pod) -> None:
        if pod.node:
            self._taken.add(pod.node)
        if pod.topology and not exclusive.waits(pod) and (value := self._value(pod)) is not None:
            self._hold(pod.job, Domain(pod.topology, value), pods=0 if pod.deleting else 1)

    def _value(self, pod: Pod) -> str | None:
        """Return the domain of a pod, by its node or its node selector.

        For a deleted node, only the selector is left.
        """
        node = self._by_name.get(pod.node)
        if node is not None and pod.topology in node.labels:
            return node.labels[pod.topology]
        return dict(pod.needs.selector).get(pod.topology)

    def _hold(self, job: str, domain: Domain, *, pods: int = 1) -> None:
        if domain not in self._own[job]:
            self._taken.update(node.name for node in self._of(domain.topology).get(domain, ()))
        self._own[job][domain] += pods

    def _is_free(self, domain: Domain) -> bool:
        return self._taken.isdisjoint(node.name for node in self._of(domain.topology)[domain])

    def _of(self, topology: str) -> Mapping[Domain, tuple[Node, ...]]:
        if topology not in self._domains:
            found: defaultdict[Domain, list[Node]] = defaultdict(list)
            for node in self._nodes:
                if topology in node.labels:
                    found[Domain(topology, node.labels[topology])].append(node)
            self._domains[topology] = {domain: tuple(its) for domain, its in found.items()}
        return self._domains[topology]

    def _sized(self, pod: Pod) -> tuple[Sequence[_Room], list[_Room]]:
        """Return all domains with their room for such pods, the smallest first, and those not yet offered."""
        key = (pod.topology, pod.needs)
        if key not in self._rooms:
            domains = self._of(pod.topology)
            self._rooms[key] = sorted((pod_room(its, pod.needs), domain.value) for domain, its in domains.items())
            self._left[key] = list(self._rooms[key])
        return self._rooms[key], self._left[key]


def _waiting(seeker: Seeker, topology: str, *, domains: int, large: int) -> Waiting:
    if not domains:
        reason, text = Reason.NO_DOMAIN, f"no node has label {topology}. Label the nodes by their domains"
    elif not large:
        reason = Reason.NO_ROOM
        text = f"none of the {domains} domains of {topology} has enough room on ready nodes for its {seeker.pods} pods"
    else:
        reason = Reason.ALL_HELD
        text = f"each of the {large} domains of {topology} with room for its {seeker.pods} pods is in use by other Jobs"
    return Waiting(seeker.job, reason, f"Job {seeker.name}: {text}")


_NAME_FIELD: Final = "metadata.name"
_NONE: Final = Fraction(0)
_PLENTY: Final = 2**31 - 1
"""Number of pods that request nothing. (Those of the API request a place among a node's pods.)"""


def pod_room(nodes: Iterable[Node], needs: Needs) -> int:
    """Return how many such pods these nodes take if nothing else runs there."""
    return sum(_fit(node, needs) for node in nodes if node_takes(node, needs))


def node_takes(node: Node, needs: Needs) -> bool:
    """Return whether such a pod may run on a node, if there is room."""
    return (
        node.usable
        and _is_meant(node, needs)
        and all(any(_tolerates(each, taint) for each in needs.tolerations) for taint in node.taints)
    )


def _is_meant(node: Node, needs: Needs) -> bool:
    """Return whether a node has the labels that such a pod requires, whatever its state."""
    return all(node.labels.get(key) == value for key, value in needs.selector) and (
        needs.terms is None or any(_holds(term, node) for term in needs.terms)
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
