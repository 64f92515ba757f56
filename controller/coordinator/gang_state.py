"""A worker's knowledge of its gang: the current members and their nodes, its rounds so far, and its JobSet's policy."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import structlog

from kubemend.common.gangs import GangKey
from kubemend.controller.coordinator import round_report, wire
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.decisions import cases, table
from kubemend.controller.decisions.facts import Decision, Facts, Reason
from kubemend.controller.gangs import budget, members
from kubemend.controller.jobset.spec.model import Refusal
from kubemend.controller.model.faults import Cause
from kubemend.controller.model.members import Member, NodeName, NodeView, Owner, PodPhase
from kubemend.controller.model.rounds import RoundRef

_GONE: Final = "Gone"
"""State of a JobSet whose object no longer exists, in addition to ``controller.jobset.policy.in_place.Closed``."""


class JobSetPolicyLookup:
    """One gang's JobSet.

    Without a JobSet that kubemend manages there are no limits, and notifications have no effect.
    """

    def __init__(self, key: GangKey, *, dependencies: Dependencies) -> None:
        self._key = key
        self._jobsets = dependencies.jobsets
        self._now = dependencies.now
        self._dry_run = dependencies.policy.dry_run
        self._is_ours = False

    def facts(self) -> dict[str, Any]:
        """Return the JobSet's facts for a decision about the gang (``controller.decisions.facts.Facts``)."""
        policy = self._jobsets.policy(self._key)
        if policy is None:
            return {"closed": _GONE} if self._is_ours else {}
        self._is_ours = True
        return {"closed": policy.closed, "limit": policy.limit, "used": policy.used}

    def off_reason(self) -> str:
        """Return why no round of the gang may continue; "" if it may."""
        closed = self.facts().get("closed")
        return f"its JobSet is {closed.lower()}" if closed else ""

    def counted(self, member: Member) -> Member:
        """Return a member as a round counts it. One whose index has failed for good is over: no new pod replaces it."""
        if member.phase is PodPhase.FAILED and self._jobsets.is_given_up(member):
            return replace(member, phase=PodPhase.SUCCEEDED)
        return member

    def turned_down(self, decision: Decision, *, pod: str) -> None:
        """Notify the JobSet of a fault that is not answered by a round, if the JobSet must end because of it.

        In dry run it does not end: no restart was possible anyway.
        """
        if decision.reason is Reason.REACHED_MAX_RESTARTS and not self._dry_run:
            refusal = Refusal(decision.reason.value, decision.detail, at=self._now(), pod=pod)
            self._jobsets.refused(self._key, refusal)


log = structlog.get_logger(__name__)

_BEGUN_KEPT: Final = 1000


class Gang:
    """One gang, with its JobSet if kubemend manages that."""

    def __init__(self, key: GangKey, *, dependencies: Dependencies) -> None:
        self.key = key
        self._dependencies = dependencies
        self._jobset_policy = JobSetPolicyLookup(key, dependencies=dependencies)
        self._attempt = 0
        self._begun: dict[str, tuple[str, budget.Past]] = {}

    # ---- as it is now ----

    def members(self) -> tuple[Member, ...]:
        """Return the members, as a round counts them."""
        found = self._dependencies.members.of_gang(self.key).values()
        return tuple(self.counted(each) if each.phase is PodPhase.FAILED else each for each in found)

    def counted(self, member: Member) -> Member:
        """Return a member as a round counts it."""
        return self._jobset_policy.counted(member)

    def nodes(self, members: tuple[Member, ...]) -> dict[NodeName, NodeView]:
        """Return the nodes of these members, as far as they are known."""
        views = {member.node: self._dependencies.nodes.view(member.node) for member in members if member.node}
        return {name: view for name, view in views.items() if view is not None}

    def connected(self, members: tuple[Member, ...]) -> frozenset[NodeName]:
        """Return the nodes of these members whose agents are connected."""
        nodes = {member.node for member in members if member.node}
        return frozenset(node for node in nodes if self._dependencies.sessions(node) is not None)

    def owner(self) -> Owner | None:
        """Return the owner of the whole gang: its Restart objects are deleted with it."""
        return self._dependencies.jobsets.owner(self.key) or round_report.owner_of(self.key, self.members())

    def uid(self) -> str:
        """Return the UID of the object that the gang is named after; "" if that is not known."""
        jobset = self._dependencies.jobsets.owner(self.key)
        return jobset.uid if jobset is not None else members.uid_of(self.members())

    def decisions(self, causes: Iterable[Cause]) -> Iterator[Decision]:
        """Yield the decision about each cause, without a change of members or rounds in between; count and log it.

        All share one set of facts: those of a JobSet with a thousand Jobs take milliseconds.
        """
        facts: Facts | None = None
        for cause in causes:
            facts = self._facts(cause) if facts is None else replace(facts, cause=cause)
            yield self._decide(facts)

    def _decide(self, facts: Facts) -> Decision:
        cause, decision = facts.cause, table.decide(facts, now=self._dependencies.now())
        self._dependencies.metrics.decisions.labels(decision.kind.value, decision.reason.value).inc()
        log.info(
            "gang.decided",
            gang=str(self.key),
            **round_report.ids_of(cause),
            cause=round_report.code_of(cause),
            message=round_report.message_of(cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            detail=decision.detail,
            recreate=sorted(decision.recreate),
            retry_at=decision.retry_at,
        )
        return decision

    def off_reason(self) -> str:
        """Return why no round of the gang may continue; "" if it may."""
        return self._jobset_policy.off_reason()

    def turned_down(self, decision: Decision, *, pod: str) -> None:
        """Record that a fault of this pod is not answered by a round."""
        self._jobset_policy.turned_down(decision, pod=pod)

    def member_gone(self) -> None:
        """Record that a member is gone. After the last one, new members may belong to another JobSet."""
        if not self._dependencies.members.of_gang(self.key):
            self._jobset_policy = JobSetPolicyLookup(self.key, dependencies=self._dependencies)

    # ---- its rounds ----

    def next_attempt(self) -> int:
        """Return a number that no round of the gang has had, though the rounds' objects may be deleted."""
        newest = max(
            self._dependencies.restarts.newest_attempt(self.key), self._dependencies.jobsets.newest_attempt(self.key)
        )
        self._attempt = max(self._attempt, newest) + 1
        return self._attempt

    def begun(self, ref: RoundRef, past: budget.Past, *, uid: str) -> None:
        """Record a round that begins or is resumed; ``uid`` is of the object that the gang was named after then."""
        self._attempt = max(self._attempt, ref.attempt)
        while len(self._begun) >= _BEGUN_KEPT:
            del self._begun[next(iter(self._begun))]
        self._begun[ref.id] = uid, past

    def is_lost(self, round_id: str) -> bool:
        """Return whether a previous leader has begun a round of which there is no object.

        If it was requested, its object was deleted, which takes it back, or is a request that waits.
        """
        is_known = round_id in self._begun or round_id in self._dependencies.restarts.restarts()
        return not is_known and not wire.is_requested(round_id)

    def ended(self, ref: RoundRef, *, now: float) -> None:
        """Record that a round ends now: the lifetime of its members counts from here, as by its object."""
        uid, past = self._begun[ref.id]
        self._begun[ref.id] = uid, replace(past, at=now)

    def _facts(self, cause: Cause) -> Facts:
        """Return the facts of a decision."""
        present, uid = self.members(), self.uid()
        nodes, namespaces = self.nodes(present), self._dependencies.policy.namespaces
        begun = {each: past for each, (its, past) in self._begun.items() if round_report.same_uid(its, uid)}
        return Facts(
            cause=cause,
            members=present,
            nodes=nodes,
            history=round_report.history(self._dependencies.restarts.of_gang(self.key).values(), uid=uid, begun=begun),
            opted_in_namespaces=namespaces,
            dry_run=self._dependencies.policy.dry_run,
            roster=cases.roster(present, nodes=nodes, namespaces=namespaces),
            **self._jobset_policy.facts(),
        )
