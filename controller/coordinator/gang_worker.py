"""One gang's worker: decide about its members' faults and its requests, and run one round after another."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from kubemend.common import contained
from kubemend.common.contained import Part
from kubemend.common.coordination import FaultAnswer
from kubemend.common.gangs import POD, GangKey
from kubemend.common.kube import errors
from kubemend.controller.coordinator import pending, round_report, round_runner
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.fault_book import FaultAnswerMessage
from kubemend.controller.coordinator.gang_state import Gang
from kubemend.controller.coordinator.pending import PendingCause, PendingQueue
from kubemend.controller.coordinator.round_factory import RoundFactory
from kubemend.controller.coordinator.round_runner import RoundRunner
from kubemend.controller.decisions import facts
from kubemend.controller.decisions.facts import Decision, Kind
from kubemend.controller.gangs import job_accounting
from kubemend.controller.leader.election import Term
from kubemend.controller.model.faults import Fault, FaultKey, Request
from kubemend.controller.model.members import Member, Owner, PodUid
from kubemend.controller.model.rounds import (
    Cancelled,
    FaultReported,
    MemberDropped,
    MemberLeft,
    MemberSeen,
    NodeChanged,
    PodGone,
    RoundEvent,
    RoundRef,
)
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.rounds import replacement
from kubemend.controller.rounds.outcome import EndedRound
from kubemend.controller.rounds.states import MemberPhase

log = structlog.get_logger(__name__)

_DECIDED_AT_ONCE: Final = 256
"""Causes that are decided about before other tasks run: one of them renews the lease, and others serve other gangs."""

_LEFT_TO_AGENTS: Final = frozenset({facts.Reason.NOT_OPTED_IN, facts.Reason.DRY_RUN})
"""Reasons not to restart a gang as one, though each agent may still restart its own member."""


class GangWorker:
    """Decide one cause after another, and run at most one round at a time."""

    def __init__(
        self,
        key: GangKey,
        *,
        dependencies: Dependencies,
        term: Term,
        answer: Callable[[FaultKey, FaultAnswerMessage], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        """``answer`` takes a fault's key and its answer; ``spawn`` runs a named task."""
        self._gang = Gang(key, dependencies=dependencies)
        self._dependencies = dependencies
        self._beginning = RoundFactory(self._gang, dependencies=dependencies, term=term, over=self._over)
        self._answer = answer
        self._spawn = spawn
        self._queue = PendingQueue()
        self._awake = asyncio.Event()
        self._deciding = False
        self._persists = False
        self._runner: RoundRunner | None = None
        self._joined: dict[FaultReported, Fault] = {}
        self._joined_of: Counter[tuple[PodUid, bool]] = Counter()  # before and after the release
        self._last_record: EndedRound | None = None
        self._last_containers: tuple[str, ...] = ()
        self._taken: set[str] = set()
        self._asked: dict[Owner, list[Member]] = {}  # members that are gone, by the Job that is being read
        self._settled = asyncio.Event()

    @property
    def runner(self) -> RoundRunner | None:
        """Return the round under way."""
        return self._runner

    @property
    def has_round(self) -> bool:
        """Return whether a round is under way, or is being persisted to begin then."""
        return self._runner is not None or self._persists

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is under way and nothing is queued."""
        return self._runner is None and not self._deciding and not self._queue

    async def wait_idle(self) -> None:
        """Wait until nothing is under way and nothing is queued."""
        while not self.is_idle:
            self._settled.clear()
            await self._settled.wait()

    def fault(self, fault: Fault) -> None:
        """Queue a member's fault or add it to the round under way; its answer follows."""
        event = pending.fault_event(fault)
        if self._runner is not None and not pending.is_restarted(fault, self._runner.containers):
            self._answer(fault.key, FaultAnswerMessage(FaultAnswer.ROUND, self._runner.id))
            case = PendingCause(fault)
            self._queue.add(case)
            self._queue.postpone(case, until=math.inf, now=self._dependencies.now())  # to the round's end
        elif self._runner is not None:
            of_pod = fault.pod.uid, self._runner.released_at is not None
            self._joined_of[of_pod] += 1
            if self._joined_of[of_pod] <= pending.MOST_OF_A_POD:
                self._joined[event] = fault
                self._runner.submit(event)
            self._answer(fault.key, FaultAnswerMessage(FaultAnswer.ROUND, self._runner.id))
        elif (
            self._last_record is not None
            and self._last_record.has(event)
            and pending.is_restarted(fault, self._last_containers)
        ):
            self._answer(
                fault.key, FaultAnswerMessage(FaultAnswer.ROUND, self._last_record.round)
            )  # it came late: that round is over
        else:
            self._open(PendingCause(fault))

    def request(self, restart: Restart) -> None:
        """Queue a request. It waits for the round under way, because rounds run one at a time."""
        if restart.id not in self._taken:
            self._taken.add(restart.id)
            members = len(self._gang.members())
            self._open(PendingCause(round_report.request_of(restart, key=self._gang.key, members=members), restart))

    def withdraw(self, restart: Restart) -> None:
        """Handle the deletion of a Restart object: drop the request, or end its round."""
        self._taken.discard(restart.id)
        self._queue.withdraw(restart.id)
        self._settled.set()
        if self._runner is not None and self._runner.id == restart.id:
            self._runner.submit(round_report.cancelled())

    def resume(self, restart: Restart) -> None:
        """Resume a round that a previous leader has begun."""
        self._run_round(self._beginning.resume(restart))

    def takes_over(self, member: Member, *, round_id: str) -> bool:
        """Return whether a round takes over a member that its agent holds for another one.

        If that other one's object was never written, a round begins: members must not be released one by one.
        """
        if self._runner is not None:
            one = self._runner.round.members.get(member.pod.uid)
            return one is not None and one.phase is MemberPhase.STOPPING
        now = self._dependencies.now()
        if not self._queue.due(now=now, most=1) and self._gang.is_lost(round_id):
            message = f"round {round_id} was never written, and its leader is gone"
            event = FaultReported(member.pod.uid, round_report.LOST, message)
            self._open(PendingCause(pending.synthesize_fault(event, member=member, round_id=round_id, now=now)))
        return bool(self._queue.due(now=now, most=1))

    def forward(self, *events: RoundEvent) -> None:
        """Forward events to the round under way."""
        if self._runner is not None:
            self._runner.submit(*events)

    def member_changed(self, member: Member, *, gone: bool) -> None:
        """Handle a change of a member from the API server."""
        if gone:
            self.forward(PodGone(member.pod.uid))
            self._ask_owner(member)
            self._gang.member_gone()
            self._recheck(member)
            return
        self.forward(MemberSeen(self._gang.counted(member)))
        if member.node:
            self.forward(round_runner.node_event(member.node, dependencies=self._dependencies))

    def _ask_owner(self, member: Member) -> None:
        """Find out whether a Job replaces a member that is gone: else the others would wait for it.

        A JobSet's controller recreates its Jobs. Members of one Job that are gone together share an answer.
        """
        owner = member.owner
        if self._runner is None or owner is None or (owner.api_group, owner.kind) != ("batch", "Job"):
            return
        if self._gang.key.kind == "JobSet":
            return
        asked = self._asked.setdefault(owner, [])
        asked.append(member)
        if len(asked) == 1:
            self._spawn(self._read_owner(owner), f"owner of {member.pod}")

    async def _read_owner(self, owner: Owner) -> None:
        with contained.within(Part.GANG, self._gang.key):
            try:
                job = await self._dependencies.pod_replacer.job_of(self._asked[owner][0])
            except errors.KubeError as error:
                log.info("members.owner_unknown", gang=str(self._gang.key), owner=owner.name, error=str(error))
                return
            finally:
                members = self._asked.pop(owner)
            lasting = (each for each in self._gang.members() if not (each.is_over or each.deleting))
            others = sum(each.owner == owner for each in lasting)
            for member in members:
                index = member.slot.rpartition("/")[2]
                if not job_accounting.replaces(job, uid=owner.uid, index=index, others=others):
                    self.forward(MemberDropped(member.pod.uid))

    def member_left(self, member: Member) -> None:
        """Handle that a member has left the gang, though its pod still exists.

        A single pod also leaves when it is no longer polled, as at the end of a term: the next leader continues its
        round.
        """
        if self._gang.key.kind != POD:
            self.forward(MemberLeft(member.pod.uid))
        self._recheck(member)

    def _recheck(self, member: Member) -> None:
        """Decide again about faults that were postponed for a member that the gang no longer has."""
        self._queue.recheck(pod=member.pod.uid)
        self._wake_up()

    def jobset_changed(self) -> None:
        """Record that the gang's JobSet has changed: it may no longer allow restarts."""
        if self.is_idle or not (reason := self._gang.off_reason()):
            return
        self._queue.recheck()
        self._wake_up()
        self.forward(Cancelled(reason))

    def node_changed(self, event: NodeChanged) -> None:
        """Handle that a node or its agent has appeared or disappeared."""
        self.forward(event)

    def drop(self) -> None:
        """Leave everything as it is: this replica no longer leads."""
        if self._runner is not None:
            self._runner.drop()
            self._runner = None
            self._dependencies.metrics.rounds_active.dec()
        self._settled.set()

    def _open(self, case: PendingCause) -> None:
        self._queue.add(case)
        self._wake_up()

    def _wake_up(self) -> None:
        """Decide about queued causes. While a round is in progress, they wait for its end."""
        self._awake.set()
        if self._queue and self._runner is None and not self._deciding:
            self._deciding = True
            self._spawn(self._decide(), f"decide about {self._gang.key}")

    async def _decide(self) -> None:
        """Decide until a round is under way or the queue is empty."""
        try:
            with contained.within(Part.GANG, self._gang.key) as work:
                while self._queue and self._runner is None:
                    due = self._queue.due(now=self._dependencies.now(), most=_DECIDED_AT_ONCE)
                    if due:
                        await self._decide_about(due)
                        await asyncio.sleep(0)
                    else:
                        await self._wait_for_change()
            if work.failed:
                self.give_up()
        finally:
            self._deciding = False
            self._settled.set()

    async def _wait_for_change(self) -> None:
        """Wait until the first hold ends or something happens."""
        self._awake.clear()
        until = self._queue.postponed_until
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(until - self._dependencies.now(), 0.0)):
                await self._awake.wait()

    async def _decide_about(self, due: list[PendingCause]) -> None:
        """Decide about causes in their order, up to the first that begins a round."""
        for case, decision in zip(due, self._gang.decisions(each.cause for each in due), strict=False):
            if decision.kind.begins_round:
                await self._begin(case, decision)
                return
            if decision.kind is Kind.POSTPONE:
                self._hold(case, decision)
            else:
                self._queue.remove(case)
                self._refuse(case, decision)

    def give_up(self) -> None:
        """Refuse everything that is queued and fail the round under way, because of an internal error."""
        for case in self._queue.take_all():
            with contained.within(Part.GANG, self._gang.key):
                self._refuse_by_internal_error(case)
        if self._runner is not None:
            with contained.within(Part.ROUND, self._runner.id):
                self._runner.give_up()

    def _refuse_by_internal_error(self, case: PendingCause) -> None:
        reason = "the controller could not decide; see the traceback in its log"
        if isinstance(case.cause, Fault):
            self._answer(
                case.cause.key, FaultAnswerMessage(FaultAnswer.NOTHING, reason=round_report.INTERNAL, detail=reason)
            )
        elif case.restart is not None:
            failed = round_report.failed({}, reason=round_report.INTERNAL, message=reason, now=self._dependencies.now())
            self._dependencies.restarts.set_status(case.restart, failed)

    def _hold(self, case: PendingCause, decision: Decision) -> None:
        """Postpone the gang's restart and have the agent leave the member to the controller."""
        if isinstance(case.cause, Fault):
            message = FaultAnswerMessage(FaultAnswer.ROUND, reason=decision.reason.value, detail=decision.detail)
            self._answer(case.cause.key, message)
        until = math.inf if decision.retry_at is None else decision.retry_at
        self._queue.postpone(case, until=until, now=self._dependencies.now())

    async def _begin(self, case: PendingCause, decision: Decision) -> None:
        """Persist the round, then begin it. Faults that arrive while it is written become part of it."""
        new = self._beginning.planned(case.cause, decision)
        self._persists = True
        try:
            begun = await self._beginning.write_down(new, request=case.restart)
        finally:
            self._persists = False
        if case not in self._queue:  # withdrawn while the round was written, or given up
            if case.restart is None:
                self._beginning.give_up(new, begun)
            return
        if case.restart is not None and case.restart.id not in self._dependencies.restarts.restarts():
            self._queue.remove(case)
            return  # deleted while the round was written
        self._run_round(self._beginning.begin(case, decision, new=new, begun=begun))
        self._queue.remove(case)
        self._answer_begun(case, begun.ref)

    def _answer_begun(self, case: PendingCause, ref: RoundRef) -> None:
        """Answer the cause that the round has begun, and add the faults queued since then to the round."""
        if isinstance(case.cause, Fault):
            self._answer(case.cause.key, FaultAnswerMessage(FaultAnswer.ROUND, ref.id))
        for fault in self._queue.take_faults():
            self.fault(fault)

    def _run_round(self, round_: RoundRunner) -> None:
        if round_.round.phase.is_final:
            return
        self._runner = round_
        away = {member.node for member in self._gang.members() if member.node} - round_.round.connected
        self.forward(*(round_runner.node_event(node, dependencies=self._dependencies) for node in sorted(away)))
        self.jobset_changed()  # it may have changed since the decision, or since a previous leader began the round

    def _over(self, round_: RoundRunner, again: tuple[FaultReported, ...]) -> None:
        ended = round_.round
        self._runner = None
        self._gang.ended(ended.ref, now=self._dependencies.now())
        if round_.released_at is not None:
            self._last_record, self._last_containers = EndedRound.of(ended), round_.containers
        self._dependencies.metrics.rounds_active.dec()
        if ended.phase.is_final:
            with contained.within(Part.ROUND, round_.id):  # else the queued faults would wait indefinitely
                self._dependencies.jobsets.ended(ended)
                round_report.report_end(ended, dependencies=self._dependencies)
        joined, self._joined = self._joined, {}
        self._joined_of.clear()
        for event in again:
            if event in joined:
                self._queue.add(PendingCause(joined[event]))
            elif (member := self._dependencies.members.by_uid(event.pod)) is not None:
                fault = pending.synthesize_fault(
                    event, member=member, round_id=ended.ref.id, now=self._dependencies.now()
                )
                self._queue.add(PendingCause(fault))
        if ended.reason == replacement.MEMBER_LEFT:  # the others are decided on for the gang as it is now
            for fault in [fault for event, fault in joined.items() if event not in again]:
                self._queue.add(PendingCause(fault))
        self._queue.recheck()
        self._wake_up()
        self._settled.set()

    def _refuse(self, case: PendingCause, decision: Decision) -> None:
        if isinstance(case.cause, Request):
            assert case.restart is not None
            self._dependencies.restarts.set_status(
                case.restart, round_report.refused(decision, now=self._dependencies.now())
            )
            return
        alone = decision.kind is Kind.ALONE or decision.reason in _LEFT_TO_AGENTS
        what = FaultAnswer.ALONE if alone else FaultAnswer.NOTHING
        self._answer(case.cause.key, FaultAnswerMessage(what, reason=decision.reason.value, detail=decision.detail))
        if decision.kind is Kind.FAIL:
            round_report.report_refusal(case.cause, decision, dependencies=self._dependencies)
        self._gang.turned_down(decision, pod=case.cause.pod.name)
