"""One gang's desk: what its members' faults and people's requests come to, one round after another."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from common import contained
from common.contained import Part
from common.gangs import GangKey
from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app import cases, conducting, story
from controller.app.beginning import Beginning
from controller.app.cases import Case, Cases
from controller.app.conducting import Conducting
from controller.app.gang import Gang
from controller.app.outside import Outside
from controller.decisions import facts
from controller.decisions.facts import Decision, Kind
from controller.leader.election import Term
from controller.model.faults import Fault, Request
from controller.model.members import Member
from controller.model.rounds import Cancelled, FaultTold, MemberSeen, NodeTold, PodGone, RoundEvent, RoundRef
from controller.restarts.objects import Restart
from controller.rounds.outcome import Mended

log = structlog.get_logger(__name__)

_NOT_AS_A_GANG: Final = frozenset({facts.Reason.NOT_OPTED_IN, facts.Reason.DRY_RUN})
"""Why a gang is not restarted as one, though each member may still be restarted by its own agent's rules."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of a fault, for its agent."""

    what: "pb.FaultAnswer.Answer.ValueType"
    round: str = ""
    reason: str = ""
    detail: str = ""


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
        self._gang = Gang(key, outside=outside)
        self._outside = outside
        self._beginning = Beginning(self._gang, outside=outside, term=term, over=self._over)
        self._answer = answer
        self._spawn = spawn
        self._cases = Cases()
        self._awake = asyncio.Event()
        self._deciding = False
        self._conducting: Conducting | None = None
        self._joined: dict[FaultTold, Fault] = {}
        self._mended: Mended | None = None
        self._taken: set[str] = set()

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
        told = cases.told(fault)
        if self._conducting is not None:
            self._joined[told] = fault
            self._conducting.take(told)
            self._answer(fault.id, Reply(pb.FaultAnswer.ROUND, self._conducting.id))
        elif self._mended is not None and self._mended.has(told):
            self._answer(fault.id, Reply(pb.FaultAnswer.ROUND, self._mended.round))  # it came late: that is over
        else:
            self._open(Case(fault))

    def request(self, restart: Restart) -> None:
        """Take somebody's request in. One at a time: it waits for the round that is under way."""
        if restart.id not in self._taken:
            self._taken.add(restart.id)
            members = len(self._gang.members())
            self._open(Case(story.request_of(restart, key=self._gang.key, members=members), restart))

    def withdraw(self, restart: Restart) -> None:
        """Somebody has deleted a Restart object: forget the request, or end its round."""
        self._taken.discard(restart.id)
        self._cases.withdraw(restart.id)
        if self._conducting is not None and self._conducting.id == restart.id:
            self._conducting.take(story.cancelled())

    def resume(self, restart: Restart) -> None:
        """Go on with a round that a former leader has begun."""
        self._conduct(self._beginning.resume(restart))

    def told(self, *events: RoundEvent) -> None:
        """Pass events on to the round under way."""
        if self._conducting is not None:
            self._conducting.take(*events)

    def member_changed(self, member: Member, *, gone: bool) -> None:
        """The API server tells of a member."""
        if gone:
            self.told(PodGone(member.pod.uid))
            self._gang.member_gone()
            self.member_left(member)
            return
        self.told(MemberSeen(self._gang.counted(member)))
        if member.node:
            self.told(conducting.node_told(member.node, outside=self._outside))

    def member_left(self, member: Member) -> None:
        """A member is of the gang no more: nothing is held for it."""
        self._cases.look_again(pod=member.pod.uid)
        self._go_on()

    def jobset_changed(self) -> None:
        """The gang's JobSet has changed: it may take no restarts any more."""
        if self.is_idle or not (why := self._gang.why_off()):
            return
        self._cases.look_again()
        self._go_on()
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
        self._cases.add(case)
        self._go_on()

    def _go_on(self) -> None:
        """Have what waits decided on; while a round is under way it waits for its end."""
        self._awake.set()
        if self._cases and self._conducting is None and not self._deciding:
            self._deciding = True
            self._spawn(self._decide(), f"decide about {self._gang.key}")

    async def _decide(self) -> None:
        """Decide until a round is under way or nothing is left to decide."""
        try:
            with contained.within(Part.GANG, self._gang.key) as work:
                while self._cases and self._conducting is None:
                    case = self._cases.next(now=self._outside.now())
                    if case is None:
                        await self._rest()
                    else:
                        await self._decide_one(case)
            if work.failed:
                self.give_up()
        finally:
            self._deciding = False

    async def _rest(self) -> None:
        """Wait until the first hold ends or something happens."""
        self._awake.clear()
        until = self._cases.held_until
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(until - self._outside.now(), 0.0)):
                await self._awake.wait()

    async def _decide_one(self, case: Case) -> None:
        decision = self._gang.decide(case.cause)
        if decision.kind is Kind.HOLD:
            self._hold(case, decision)
        elif decision.kind.begins_round:
            await self._begin(case, decision)
        else:
            self._cases.remove(case)
            self._turn_down(case, decision)

    def give_up(self) -> None:
        """Turn everything down that waits, and fail the round under way, for a defect of ours."""
        for case in self._cases.take_all():
            with contained.within(Part.GANG, self._gang.key):
                self._turn_down_for_defect(case)
        if self._conducting is not None:
            with contained.within(Part.ROUND, self._conducting.id):
                self._conducting.give_up()

    def _turn_down_for_defect(self, case: Case) -> None:
        why = "the controller could not decide; its log has the traceback"
        if isinstance(case.cause, Fault):
            self._answer(case.cause.id, Reply(pb.FaultAnswer.NOTHING, reason=story.INTERNAL, detail=why))
        elif case.restart is not None:
            told = story.failed({}, reason=story.INTERNAL, why=why, now=self._outside.now())
            self._outside.restarts.set_status(case.restart.id, told)

    def _hold(self, case: Case, decision: Decision) -> None:
        """The gang will be restarted, but not yet: its agent leaves the member to us."""
        if isinstance(case.cause, Fault):
            reply = Reply(pb.FaultAnswer.ROUND, reason=decision.reason.value, detail=decision.detail)
            self._answer(case.cause.id, reply)
        case.held_until = math.inf if decision.retry_at is None else decision.retry_at

    async def _begin(self, case: Case, decision: Decision) -> None:
        """Write the round down, then begin it; whatever comes in meanwhile becomes a part of it."""
        new = self._beginning.planned(case.cause, decision)
        begun = await self._beginning.write_down(new, request=case.restart)
        if case not in self._cases:
            return  # withdrawn meanwhile
        if case.restart is not None and case.restart.id not in self._outside.restarts.restarts():
            self._cases.remove(case)
            return  # deleted meanwhile
        self._conduct(self._beginning.begin(case, decision, new=new, begun=begun))
        self._cases.remove(case)
        self._answer_begun(case, begun.ref)

    def _answer_begun(self, case: Case, ref: RoundRef) -> None:
        """Tell who waits that there is a round now; faults that have come meanwhile are a part of it."""
        if isinstance(case.cause, Fault):
            self._answer(case.cause.id, Reply(pb.FaultAnswer.ROUND, ref.id))
        for fault in self._cases.take_faults():
            self.fault(fault)

    def _conduct(self, round_: Conducting) -> None:
        if round_.round.phase.is_final:
            return
        self._conducting = round_
        away = {member.node for member in self._gang.members() if member.node} - round_.round.connected
        self.told(*(conducting.node_told(node, outside=self._outside) for node in sorted(away)))
        self.jobset_changed()  # since it was decided on, or since a former leader has begun it

    def _over(self, round_: Conducting, again: tuple[FaultTold, ...]) -> None:
        ended = round_.round
        self._conducting = None
        if round_.released_at is not None:
            self._mended = Mended.by(ended)
        self._outside.metrics.rounds_active.dec()
        if ended.phase.is_final:
            self._outside.jobsets.ended(ended)
            story.tell_end(ended, outside=self._outside)
        joined, self._joined = self._joined, {}
        for told in again:
            if told in joined:
                self._cases.add(Case(joined[told]))
            elif (member := self._outside.members.by_uid(told.pod)) is not None:
                fault = cases.come_upon(told, member=member, round_id=ended.ref.id, now=self._outside.now())
                self._cases.add(Case(fault))
        self._go_on()

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
        self._gang.turned_down(decision, pod=case.cause.pod.name)
