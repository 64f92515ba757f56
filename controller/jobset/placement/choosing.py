"""Which Job gets which domain. Pure.

A domain goes to one Job alone. It is free when no pod of another Job's is there or on its way there, by whatever
topology that Job was placed. Of those that are free and large enough a Job gets the one with the least room, so that
large ones stay for large Jobs; and it stays there as long as any of its pods does.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from controller.jobset import naming
from controller.jobset.model import ChildJob
from controller.jobset.placement import fitting, marks
from controller.jobset.placement.model import (
    Assignment,
    Domain,
    Needs,
    Node,
    Placements,
    Pod,
    Reason,
    Seeker,
    Waiting,
)

_Room = tuple[int, str]
"""How many pods a domain takes, and its value: in this order domains are tried."""


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
    """Return where the pods that wait may go, Job by Job in the order of ``seekers``, and who goes on waiting.

    ``pods`` are those of all JobSets' Jobs, whoever runs the JobSet; pods of Jobs that are not among the seekers only
    hold what they hold. ``promised``, by Job: what was assigned before and is not yet to be seen in the pods.
    """
    every = tuple(pods)
    waiting: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in every:
        if marks.waits(pod):
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
    """Who is where, while one look lasts; what is chosen is held at once, and nothing is given back."""

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
                self._see(pod)
        for job, domain in promised.items():
            self._hold(job, domain)

    def choose(self, seeker: Seeker, pod: Pod) -> Domain | Waiting:
        """Return the domain of a Job, of whose waiting pods this is one, and hold it."""
        own = [(-count, domain) for domain, count in self._own[seeker.job].items() if domain.topology == pod.topology]
        if own:  # the choice is made; whether there is room for one more the scheduler knows better
            return min(own)[1]
        rooms, left = self._sized(pod)
        smallest = (seeker.pods, "")
        index = bisect.bisect_left(left, smallest)
        while index < len(left):
            domain = Domain(pod.topology, left.pop(index)[1])  # free or not, nobody gets it after this
            if self._is_free(domain):
                self._hold(seeker.job, domain)
                return domain
        return _waiting(
            seeker, pod.topology, domains=len(rooms), large=len(rooms) - bisect.bisect_left(rooms, smallest)
        )

    def _see(self, pod: Pod) -> None:
        if pod.node:
            self._taken.add(pod.node)
        if pod.topology and not marks.waits(pod) and (value := self._value(pod)) is not None:
            self._hold(pod.job, Domain(pod.topology, value))

    def _value(self, pod: Pod) -> str | None:
        """Return where a pod is or may only go; a node that is gone tells no more, the pod's selector still does."""
        node = self._by_name.get(pod.node)
        if node is not None and pod.topology in node.labels:
            return node.labels[pod.topology]
        return dict(pod.needs.selector).get(pod.topology)

    def _hold(self, job: str, domain: Domain) -> None:
        if not self._own[job][domain]:
            self._taken.update(node.name for node in self._of(domain.topology).get(domain, ()))
        self._own[job][domain] += 1

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
            self._rooms[key] = sorted((fitting.room(its, pod.needs), domain.value) for domain, its in domains.items())
            self._left[key] = list(self._rooms[key])
        return self._rooms[key], self._left[key]


def _waiting(seeker: Seeker, topology: str, *, domains: int, large: int) -> Waiting:
    if not domains:
        reason, text = Reason.NO_DOMAIN, f"no node has label {topology}; label the nodes by their domains"
    elif not large:
        reason = Reason.NO_ROOM
        text = f"none of the {domains} domains of {topology} has ready nodes that take its {seeker.pods} pods"
    else:
        reason = Reason.ALL_HELD
        text = f"each of the {large} domains of {topology} with room for its {seeker.pods} pods has other Jobs' pods"
    return Waiting(seeker.job, reason, f"Job {seeker.name}: {text}")
