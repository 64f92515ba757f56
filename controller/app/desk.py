"""One gang's desk: what its members' faults and people's requests come to, one round after another."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from common.gangs import GangKey
from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app import conducting, story
from controller.app.backing import Backing
from controller.app.conducting import Conducting
from controller.app.outside import Outside
from controller.app.words import Orders
from controller.decisions import facts, table
from controller.decisions.facts import Decision, Kind, needs_recreation
from controller.gangs import budget
from controller.leader.election import Term
from controller.model.faults import Cause, Fault, FaultKind, Request
from controller.model.members import Member, NodeName, NodeView
from controller.model.rounds import Cancelled, FaultTold, MemberSeen, NodeTold, PodGone, RoundEvent, RoundRef
from controller.restarts.objects import NewRound, Restart
from controller.rounds import machine, status
from controller.rounds.states import Advance

log = structlog.get_logger(__name__)

_BEGUN_KEPT: Final = 1000
_NOT_AS_A_GANG: Final = frozenset({facts.Reason.NOT_OPTED_IN, facts.Reason.DRY_RUN})
"""Why a gang is not restarted as one, though each member may still be restarted by its own agent's rules."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of a fault, for its agent."""

    what: "pb.FaultAnswer.Answer.ValueType"
    round: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A cause that waits for its decision; ``restart`` is the object of a request."""

    cause: Cause
    restart: Restart | None = None


class Desk:
    """Decides one case after another, and conducts at most one round at a time."""

    def __init__(
        self,
        key: GangKey,
        *,
        outside: Outside,
        term: Term,
        answer: Callable[[str, Reply], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        """``answer`` is told a fault's id and what becomes of it; ``spawn`` runs a named task."""
        self._key = key
        self._outside = outside
        self._term = term
        self._answer = answer
        self._spawn = spawn
        self._cases: list[Case] = []
        self._new_case = asyncio.Event()
        self._deciding = False
        self._conducting: Conducting | None = None
        self._covered_until = float("-inf")
        self._last_round = ""
        self._again = itertools.count(1)
        self._attempt = 0
        self._begun: dict[str, budget.Past] = {}
        self._taken: set[str] = set()
        self._backing = Backing(key, outside=outside)

    @property
    def conducting(self) -> Conducting | None:
        """The round under way."""
        return self._conducting

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return self._conducting is None and not self._deciding and not self._cases

    def fault(self, fault: Fault) -> None:
        """Take a member's fault in; its answer follows."""
        if self._conducting is not None:
            self._join(self._conducting, fault)
        elif fault.at <= self._covered_until and not needs_recreation(fault):
            self._answer(fault.id, Reply(pb.FaultAnswer.ROUND, self._last_round))  # it came late: that is over
        else:
            self._open(Case(fault))

    def request(self, restart: Restart) -> None:
        """Take somebody's request in. One at a time: it waits for the round that is under way."""
        if restart.id not in self._taken:
            self._taken.add(restart.id)
            self._open(Case(story.request_of(restart, key=self._key, members=len(self._members())), restart))

    def withdraw(self, restart: Restart) -> None:
        """Somebody has deleted a Restart object: forget the request, or end its round."""
        self._taken.discard(restart.id)
        self._cases = [case for case in self._cases if case.restart is None or case.restart.id != restart.id]
        if self._conducting is not None and self._conducting.id == restart.id:
            self._conducting.take(story.cancelled())

    def resume(self, restart: Restart) -> None:
        """Go on with a round that a former leader has begun."""
        ref = restart.ref
        assert ref is not None
        kept = status.parse(restart.status, created_at=restart.created_at)
        members = self._members()
        first = machine.resume(
            ref,
            kept=kept,
            members=members,
            nodes=self._nodes(members),
            told=(),
            opted_in_namespaces=self._outside.policy.namespaces,
            limits=story.limits(self._outside.policy.limits, restart),
            max_unavailable=restart.spec.unavailable(len(members)),
            now=self._outside.now(),
        )
        self._attempt = max(self._attempt, ref.attempt)
        log.info("round.resumed", round=ref.id, gang=str(self._key), attempt=ref.attempt, epoch=self._term.epoch)
        self._begun[ref.id] = status.past(restart.status, created_at=restart.created_at)
        self._conduct(first, restart=restart, code=kept.trigger.code, message=kept.trigger.message)

    def told(self, *events: RoundEvent) -> None:
        """Pass events on to the round under way."""
        if self._conducting is not None:
            self._conducting.take(*events)

    def member_changed(self, member: Member, *, gone: bool) -> None:
        """The API server tells of a member."""
        self.told(PodGone(member.pod.uid) if gone else MemberSeen(self._backing.counted(member)))
        if not gone and member.node:
            self.told(conducting.node_told(member.node, outside=self._outside))
        if gone and not self._outside.members.of_gang(self._key):
            self._backing = Backing(self._key, outside=self._outside)  # who comes may be of somebody else's JobSet

    def jobset_changed(self) -> None:
        """The gang's JobSet has changed: it may take no restarts any more."""
        if self.is_idle or not (why := self._backing.why_off()):
            return
        self._new_case.set()
        self.told(Cancelled(why))

    def node_changed(self, told: NodeTold) -> None:
        """A node's agent has come or gone, or the node itself."""
        self.told(told)

    def drop(self) -> None:
        """Leave everything as it stands: this replica no longer leads."""
        if self._conducting is not None:
            self._conducting.drop()
            self._conducting = None

    def _open(self, case: Case) -> None:
        self._cases.append(case)
        self._new_case.set()
        if not self._deciding:
            self._deciding = True
            self._spawn(self._decide(), f"decide about {self._key}")

    def _join(self, round_: Conducting, fault: Fault) -> None:
        told = FaultTold(
            pod=fault.pod.uid,
            code=fault.code,
            message=fault.message,
            needs_recreation=needs_recreation(fault),
            at=fault.at,
        )
        round_.take(told)
        self._answer(fault.id, Reply(pb.FaultAnswer.ROUND, round_.id))

    async def _decide(self) -> None:
        """Decide until a round is under way or nothing is left to decide."""
        try:
            while self._cases and self._conducting is None:
                self._new_case.clear()
                await self._decide_one(self._cases[0])
        except Exception:
            log.exception("gang.defect", gang=str(self._key))
            self._give_up()
        finally:
            self._deciding = False

    async def _decide_one(self, case: Case) -> None:
        decision = self._decision(case)
        if decision.kind is Kind.HOLD:
            await self._wait(case, decision)
        elif decision.kind.begins_round:
            await self._begin(case, decision)
        else:
            self._cases.remove(case)
            self._turn_down(case, decision)

    def _give_up(self) -> None:
        """Turn everything down for a defect of ours."""
        self._outside.metrics.defects.inc()
        why = "the controller could not decide; its log has the traceback"
        cases, self._cases = self._cases, []
        for case in cases:
            if isinstance(case.cause, Fault):
                self._answer(case.cause.id, Reply(pb.FaultAnswer.NOTHING, reason=story.INTERNAL, detail=why))
            elif case.restart is not None:
                told = story.failed({}, reason=story.INTERNAL, why=why, now=self._outside.now())
                self._outside.restarts.set_status(case.restart.id, told)

    def _decision(self, case: Case) -> Decision:
        members = self._members()
        decision = table.decide(
            facts.Facts(
                cause=case.cause,
                members=members,
                nodes=self._nodes(members),
                history=self._history(),
                opted_in_namespaces=self._outside.policy.namespaces,
                dry_run=self._outside.policy.dry_run,
                **self._backing.facts(),
            ),
            now=self._outside.now(),
        )
        self._outside.metrics.decisions.labels(decision.kind.value, decision.reason.value).inc()
        log.info(
            "gang.decided",
            gang=str(self._key),
            **story.ids_of(case.cause),
            cause=story.code_of(case.cause),
            message=story.message_of(case.cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            detail=decision.detail,
            recreate=sorted(decision.recreate),
            retry_at=decision.retry_at,
        )
        return decision

    async def _wait(self, case: Case, decision: Decision) -> None:
        """The gang will be restarted, but not yet: its agent leaves the member to us. A new case is looked at first."""
        if isinstance(case.cause, Fault):
            reply = Reply(pb.FaultAnswer.ROUND, reason=decision.reason.value, detail=decision.detail)
            self._answer(case.cause.id, reply)
        timeout = None if decision.retry_at is None else max(decision.retry_at - self._outside.now(), 0.0)
        try:
            async with asyncio.timeout(timeout):
                await self._new_case.wait()
        except TimeoutError:
            return
        if case in self._cases:
            self._cases.remove(case)
            self._cases.append(case)

    async def _begin(self, case: Case, decision: Decision) -> None:
        """Write the round down, then begin it; whatever comes in meanwhile becomes a part of it."""
        self._attempt = self._next_attempt()
        new = NewRound(
            gang=self._key,
            attempt=self._attempt,
            epoch=self._term.epoch,
            status=self._record(case.cause, decision),
            owner=self._outside.jobsets.owner(self._key) or story.owner_of(self._key, self._members()),
        )
        if case.restart is not None:
            begun = await self._outside.restarts.take(case.restart, new)
        else:
            begun = await self._outside.restarts.create(new)
        if not begun.durable:
            self._outside.metrics.not_durable.inc()
        if case not in self._cases:
            return  # withdrawn meanwhile
        if case.restart is not None and case.restart.id not in self._outside.restarts.restarts():
            self._cases.remove(case)
            return  # deleted meanwhile
        log.info(
            "round.begun",
            round=begun.ref.id,
            gang=str(self._key),
            attempt=self._attempt,
            **story.ids_of(case.cause),
            cause=story.code_of(case.cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            durable=begun.durable,
        )
        try:
            self._set_out(case, decision, ref=begun.ref)
        except Exception:  # its object must not stay behind as that of a round under way
            why = "a defect of the controller; its log has the traceback"
            told = story.failed(new.status, reason=story.INTERNAL, why=why, now=self._outside.now())
            self._outside.restarts.set_status(begun.ref.id, told)
            raise
        self._cases.remove(case)
        self._answer_begun(case, begun.ref)

    def _next_attempt(self) -> int:
        """Return a number that no round of the gang has had, though their objects may be gone."""
        newest = max(self._outside.restarts.newest_attempt(self._key), self._outside.jobsets.newest_attempt(self._key))
        return max(self._attempt, newest) + 1

    def _set_out(self, case: Case, decision: Decision, *, ref: RoundRef) -> None:
        members = self._members()
        self._outside.jobsets.begun(ref, case.cause, now=self._outside.now())
        while len(self._begun) >= _BEGUN_KEPT:
            del self._begun[next(iter(self._begun))]
        self._begun[ref.id] = story.past_of(case.cause, members=members, now=self._outside.now())
        first = self._first_steps(case, decision, members=members, ref=ref)
        code, message = story.code_of(case.cause), story.message_of(case.cause)
        self._conduct(first, restart=case.restart, code=code, message=message)

    def _record(self, cause: Cause, decision: Decision) -> dict[str, Any]:
        """Return what is written down before anything is done."""
        return status.first(
            cause,
            decision=decision,
            attempt=self._attempt,
            hit=self._outside.members.by_uid(cause.pod.uid) if isinstance(cause, Fault) else None,
            started_at=self._outside.now(),
        )

    def _first_steps(self, case: Case, decision: Decision, *, members: tuple[Member, ...], ref: RoundRef) -> Advance:
        """Return how the round begins, with the members as they are now."""
        return machine.begin(
            ref,
            cause=case.cause,
            decision=decision,
            members=members,
            nodes=self._nodes(members),
            connected=self._connected(members),
            opted_in_namespaces=self._outside.policy.namespaces,
            limits=story.limits(self._outside.policy.limits, case.restart),
            now=self._outside.now(),
        )

    def _answer_begun(self, case: Case, ref: RoundRef) -> None:
        """Tell who waits that there is a round now; faults that have come meanwhile are a part of it."""
        if isinstance(case.cause, Fault):
            self._answer(case.cause.id, Reply(pb.FaultAnswer.ROUND, ref.id))
        later = [each for each in self._cases if isinstance(each.cause, Fault)]
        self._cases = [each for each in self._cases if each not in later]
        for each in later:
            assert isinstance(each.cause, Fault)
            self.fault(each.cause)

    def _conduct(self, first: Advance, *, restart: Restart | None, code: str, message: str) -> None:
        spec = restart.spec if restart is not None else None
        orders = Orders(
            first.round.ref,
            code=code,
            message=message,
            hold_seconds=first.round.limits.hold,
            strategy=spec.strategy if spec is not None else "",
            grace_seconds=spec.grace_seconds if spec is not None else None,
            containers=tuple(spec.containers) if spec is not None else (),
            find=self._outside.members.by_uid,
        )
        self._outside.metrics.rounds_active.inc()
        round_ = Conducting(first, orders=orders, outside=self._outside, over=self._over)
        if round_.round.phase.is_final:
            return
        self._conducting = round_
        away = {member.node for member in self._members() if member.node} - first.round.connected
        self.told(*(conducting.node_told(node, outside=self._outside) for node in sorted(away)))
        self.jobset_changed()  # since it was decided on, or since a former leader has begun it

    def _over(self, round_: Conducting, again: FaultTold | None) -> None:
        ended = round_.round
        self._conducting = None
        self._last_round = round_.id
        if round_.released_at is not None:
            self._covered_until = round_.released_at
        self._outside.metrics.rounds_active.dec()
        if ended.phase.is_final:
            self._outside.jobsets.ended(ended)
            story.tell_end(ended, outside=self._outside)
        if again is not None:
            self._fail_again(again)
        elif self._cases and not self._deciding:
            self._deciding = True
            self._spawn(self._decide(), f"decide about {self._key}")

    def _fail_again(self, again: FaultTold) -> None:
        member = self._outside.members.by_uid(again.pod)
        if member is None:
            return
        self._open(
            Case(
                Fault(
                    id=f"{self._last_round}/again/{next(self._again)}",
                    pod=member.pod,
                    gang=self._key,
                    kind=FaultKind.OTHER,
                    code=again.code,
                    message=again.message,
                    at=self._outside.now(),
                    action_class="Replace" if again.needs_recreation else "RestartApp",
                )
            )
        )

    def _turn_down(self, case: Case, decision: Decision) -> None:
        if isinstance(case.cause, Request):
            assert case.restart is not None
            self._outside.restarts.set_status(case.restart.id, story.refused(decision, now=self._outside.now()))
            return
        alone = decision.kind is Kind.ALONE or decision.reason in _NOT_AS_A_GANG
        what = pb.FaultAnswer.ALONE if alone else pb.FaultAnswer.NOTHING
        self._answer(case.cause.id, Reply(what, reason=decision.reason.value, detail=decision.detail))
        if decision.kind is Kind.FAIL:
            story.tell_refusal(case.cause, decision, outside=self._outside)
        self._backing.turned_down(decision, pod=case.cause.pod.name)

    def _members(self) -> tuple[Member, ...]:
        return tuple(self._backing.counted(each) for each in self._outside.members.of_gang(self._key).values())

    def _nodes(self, members: tuple[Member, ...]) -> dict[NodeName, NodeView]:
        views = {member.node: self._outside.nodes.view(member.node) for member in members if member.node}
        return {name: view for name, view in views.items() if view is not None}

    def _connected(self, members: tuple[Member, ...]) -> frozenset[NodeName]:
        nodes = {member.node for member in members if member.node}
        return frozenset(node for node in nodes if self._outside.sessions(node) is not None)

    def _history(self) -> tuple[budget.Past, ...]:
        """Return the gang's rounds so far: those that former leaders have begun are in their Restart objects."""
        return story.history(self._key, restarts=self._outside.restarts.restarts().values(), begun=self._begun)
