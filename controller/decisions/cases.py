"""What several rules of the table use, computed once. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kubemend.common import gangs
from kubemend.controller.decisions.facts import Facts, Reason, Roster, needs_recreation
from kubemend.controller.gangs import gang_options
from kubemend.controller.gangs import members as members_module
from kubemend.controller.gangs.gang_options import GangOptions
from kubemend.controller.model.faults import Fault, Request
from kubemend.controller.model.members import Member, NodeName, NodeView, PodPhase


@dataclass(frozen=True, slots=True)
class Case:
    """A gang and a cause as the rules see them.

    ``hit`` is the member at fault, ``recreate`` are the slots whose pods must be replaced, ``moved`` those of them that
    could be restarted where they are, but are about to leave their node, with the reason.
    """

    facts: Facts
    now: float
    roster: Roster
    hit: Member | None
    recreate: frozenset[str]
    moved: Mapping[str, Reason]

    @classmethod
    def of(cls, facts: Facts, *, now: float) -> "Case":
        """Return the case with these facts. If they have a roster, it does not read all members again."""
        gang = facts.roster or roster(facts.members, nodes=facts.nodes, namespaces=facts.opted_in_namespaces)
        cause = facts.cause
        hit, recreate = None, gang.lost
        if isinstance(cause, Fault):
            hit = gang.by_pod.get(cause.pod.uid)
            if hit is not None and needs_recreation(cause):
                recreate |= {hit.slot}
        elif cause.recreate:
            recreate |= gang.live.keys()
        is_rolling = isinstance(cause, Request) and cause.max_unavailable is not None
        # A rolling round moves none: a move of all at once would exceed its limit.
        moved = {} if is_rolling else {slot: why for slot, why in gang.movable.items() if slot not in recreate}
        return cls(facts, now, gang, hit, recreate | moved.keys() if moved else recreate, moved)


def roster(
    members: Iterable[Member], *, nodes: Mapping[NodeName, NodeView], namespaces: frozenset[str] = frozenset()
) -> Roster:
    """Return the facts that decisions about a gang share as long as its members and their nodes do not change.

    Members fail together: a decision about each of thousands must not read all the others again. A pod that kubemend
    must not delete is not movable: it is restarted where it is. A move needs no round of its own: the gang stops and
    starts in this one anyway.
    """
    everyone = tuple(members)
    present = members_module.by_slot(everyone)
    live = {slot: each for slot, each in present.items() if not each.is_over and not each.deleting}
    lost = lost_slots(present, nodes)
    concerned = live.keys() | lost
    bars = {
        slot: bar
        for slot, each in present.items()
        if (bar := members_module.bar(each, namespaces=namespaces)) is not None
    }
    options, unclear = GangOptions(), ""
    try:
        options = gang_options.of(everyone)
    except gang_options.BadAnnotationError as error:
        unclear = str(error)
    return Roster(
        by_pod={each.pod.uid: each for each in everyone},
        present=present,
        live=live,
        lost=lost,
        movable={
            slot: why
            for slot, each in live.items()
            if slot not in bars and (why := departure(each, nodes.get(each.node))) is not None
        },
        concerned=len(concerned),
        outside=tuple(
            slot
            for slot, each in present.items()
            if slot in concerned and not members_module.opted_in(each, namespaces=namespaces)
        ),
        bars=bars,
        options=options,
        elsewhere=next((slot for slot, each in live.items() if gangs.JOBSET_ATTEMPT in each.annotations), ""),
        unclear=unclear,
    )


def departure(member: Member, node: NodeView | None) -> Reason | None:
    """Return why a member is about to leave its node; None if it is not, or if the node is lost."""
    if is_lost(node):
        return None
    if node is not None and node.leaving:
        return Reason.MAINTENANCE_PLANNED
    return Reason.EVICTION_REQUESTED if member.eviction_requested else None


def is_lost(node: NodeView | None) -> bool:
    """Return whether a node is known to have failed. A node whose state is not known yet is not."""
    return node is not None and (node.ready is not True or node.out_of_service)


def lost_slots(
    present: Mapping[str, Member], nodes: Mapping[NodeName, NodeView], *, but: Collection[NodeName] = ()
) -> frozenset[str]:
    """Return the slots whose pods must be recreated: they have failed for good, or their node is lost.

    Nodes in ``but`` do not count as lost yet.
    """
    return frozenset(
        slot
        for slot, member in present.items()
        if member.phase is PodPhase.FAILED
        or (not member.is_over and not member.deleting and member.node not in but and is_lost(nodes.get(member.node)))
    )
