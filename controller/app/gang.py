"""What a desk knows of its gang: its members and their nodes as they are now, and the rounds that it has had."""

from typing import Final

import structlog

from common.gangs import GangKey
from controller.app import story
from controller.app.backing import Backing
from controller.app.outside import Outside
from controller.decisions import table
from controller.decisions.facts import Decision, Facts
from controller.gangs import budget, members
from controller.model.faults import Cause
from controller.model.members import Member, NodeName, NodeView, Owner
from controller.model.rounds import RoundRef

log = structlog.get_logger(__name__)

_BEGUN_KEPT: Final = 1000


class Gang:
    """One gang, with its JobSet where that is one that we run."""

    def __init__(self, key: GangKey, *, outside: Outside) -> None:
        self.key = key
        self._outside = outside
        self._backing = Backing(key, outside=outside)
        self._attempt = 0
        self._begun: dict[str, tuple[str, budget.Past]] = {}

    # ---- as it is now ----

    def members(self) -> tuple[Member, ...]:
        """Return its members, as a round counts them."""
        return tuple(self.counted(each) for each in self._outside.members.of_gang(self.key).values())

    def counted(self, member: Member) -> Member:
        """Return a member as a round counts it."""
        return self._backing.counted(member)

    def nodes(self, members: tuple[Member, ...]) -> dict[NodeName, NodeView]:
        """Return the nodes of these members, as far as they are known."""
        views = {member.node: self._outside.nodes.view(member.node) for member in members if member.node}
        return {name: view for name, view in views.items() if view is not None}

    def connected(self, members: tuple[Member, ...]) -> frozenset[NodeName]:
        """Return the nodes of these members whose agents are connected."""
        nodes = {member.node for member in members if member.node}
        return frozenset(node for node in nodes if self._outside.sessions(node) is not None)

    def owner(self) -> Owner | None:
        """Return who owns all of it: then its Restart objects go with it."""
        return self._outside.jobsets.owner(self.key) or story.owner_of(self.key, self.members())

    def uid(self) -> str:
        """Return the UID of what it is named after; "" where that is not known."""
        jobset = self._outside.jobsets.owner(self.key)
        return jobset.uid if jobset is not None else members.uid_of(self.members())

    def decide(self, cause: Cause) -> Decision:
        """Return what is done about a cause, by what is known now; it is counted, and the log has it."""
        decision = table.decide(self._facts(cause), now=self._outside.now())
        self._outside.metrics.decisions.labels(decision.kind.value, decision.reason.value).inc()
        log.info(
            "gang.decided",
            gang=str(self.key),
            **story.ids_of(cause),
            cause=story.code_of(cause),
            message=story.message_of(cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            detail=decision.detail,
            recreate=sorted(decision.recreate),
            retry_at=decision.retry_at,
        )
        return decision

    def why_off(self) -> str:
        """Return why no round of it may go on; "" where it may."""
        return self._backing.why_off()

    def turned_down(self, decision: Decision, *, pod: str) -> None:
        """A fault of this pod is not answered by a round."""
        self._backing.turned_down(decision, pod=pod)

    def member_gone(self) -> None:
        """A member is gone. After the last one, who comes may be of somebody else's JobSet."""
        if not self._outside.members.of_gang(self.key):
            self._backing = Backing(self.key, outside=self._outside)

    # ---- its rounds ----

    def next_attempt(self) -> int:
        """Return a number that no round of it has had, though their objects may be gone."""
        newest = max(self._outside.restarts.newest_attempt(self.key), self._outside.jobsets.newest_attempt(self.key))
        self._attempt = max(self._attempt, newest) + 1
        return self._attempt

    def begun(self, ref: RoundRef, past: budget.Past, *, uid: str) -> None:
        """A round begins, or is gone on with; ``uid`` is of what the gang was named after then."""
        self._attempt = max(self._attempt, ref.attempt)
        while len(self._begun) >= _BEGUN_KEPT:
            del self._begun[next(iter(self._begun))]
        self._begun[ref.id] = uid, past

    def _facts(self, cause: Cause) -> Facts:
        present, uid = self.members(), self.uid()
        begun = {each: past for each, (its, past) in self._begun.items() if story.same_uid(its, uid)}
        return Facts(
            cause=cause,
            members=present,
            nodes=self.nodes(present),
            history=story.history(self.key, uid=uid, restarts=self._outside.restarts.restarts().values(), begun=begun),
            opted_in_namespaces=self._outside.policy.namespaces,
            dry_run=self._outside.policy.dry_run,
            **self._backing.facts(),
        )
