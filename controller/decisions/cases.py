"""What several rules of the table use, computed once. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kubemend.controller.decisions.facts import Facts, needs_recreation
from kubemend.controller.gangs import gang_options, members
from kubemend.controller.gangs.gang_options import GangOptions
from kubemend.controller.model.faults import Fault
from kubemend.controller.model.members import Member, NodeName, NodeView, PodPhase


@dataclass(frozen=True, slots=True)
class Case:
    """A gang as the rules see it.

    ``present`` has the pod that counts for each slot, ``hit`` is the one at fault, ``recreate`` are the slots whose
    pods must be replaced, ``moved`` those of them that could be restarted where they are, but whose node is leaving.
    ``unclear`` describes what the gang's annotations have wrong.
    """

    facts: Facts
    now: float
    present: Mapping[str, Member]
    hit: Member | None
    recreate: frozenset[str]
    options: GangOptions
    moved: frozenset[str] = frozenset()
    unclear: str = ""

    @classmethod
    def of(cls, facts: Facts, *, now: float) -> "Case":
        """Return the case with these facts."""
        present = members.by_slot(facts.members)
        cause = facts.cause
        hit, recreate = None, lost_slots(present, facts.nodes)
        if isinstance(cause, Fault):
            hit = next((each for each in facts.members if each.pod.uid == cause.pod.uid), None)
            if hit is not None and needs_recreation(cause):
                recreate |= {hit.slot}
        elif cause.recreate:
            recreate |= {slot for slot, each in present.items() if not each.is_over and not each.deleting}
        moved = _movable_slots(present, facts) - recreate
        recreate |= moved
        try:
            return cls(facts, now, present, hit, recreate, gang_options.of(facts.members), moved)
        except gang_options.BadAnnotationError as error:
            return cls(facts, now, present, hit, recreate, GangOptions(), moved, unclear=str(error))

    @property
    def live(self) -> Mapping[str, Member]:
        """Return the members that a round would restart."""
        return {slot: each for slot, each in self.present.items() if not each.is_over and not each.deleting}


def is_lost(node: NodeView | None) -> bool:
    """Return whether a node is known to have failed. A node whose state is not known yet is not."""
    return node is not None and (node.ready is not True or node.out_of_service)


def lost_slots(present: Mapping[str, Member], nodes: Mapping[NodeName, NodeView]) -> frozenset[str]:
    """Return the slots whose pods must be recreated: they have failed for good, or their node is lost."""
    return frozenset(
        slot
        for slot, member in present.items()
        if member.phase is PodPhase.FAILED
        or (not member.is_over and not member.deleting and is_lost(nodes.get(member.node)))
    )


def _movable_slots(present: Mapping[str, Member], facts: Facts) -> frozenset[str]:
    """Return the slots whose pods a round may move off a node that is leaving.

    The move needs no round of its own: the gang stops and starts in this one anyway. A pod that kubemend must not
    delete is restarted where it is.
    """
    return frozenset(
        slot
        for slot, member in present.items()
        if not member.is_over
        and not member.deleting
        and (node := facts.nodes.get(member.node)) is not None
        and node.leaving
        and members.bar(member, namespaces=facts.opted_in_namespaces) is None
    )
