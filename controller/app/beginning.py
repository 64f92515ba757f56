"""How a gang's rounds begin: written down first, then set out. And how a new leader goes on with one."""

from collections.abc import Callable

import structlog

from controller.app import story
from controller.app.cases import Case
from controller.app.conducting import Conducting
from controller.app.gang import Gang
from controller.app.outside import Outside
from controller.app.words import Orders
from controller.decisions.facts import Decision
from controller.leader.election import Term
from controller.model.faults import Cause, Fault
from controller.model.rounds import FaultTold, RoundRef
from controller.restarts.objects import NewRound, Restart
from controller.restarts.store import Begun
from controller.rounds import machine, status
from controller.rounds.states import Advance

log = structlog.get_logger(__name__)


class Beginning:
    """Begins one gang's rounds. Each of them is told to ``over`` when it ends, be it at once."""

    def __init__(
        self,
        gang: Gang,
        *,
        outside: Outside,
        term: Term,
        over: Callable[[Conducting, tuple[FaultTold, ...]], None],
    ) -> None:
        self._gang = gang
        self._outside = outside
        self._term = term
        self._over = over

    def planned(self, cause: Cause, decision: Decision) -> NewRound:
        """Return what is written down before anything is done."""
        attempt = self._gang.next_attempt()
        told = status.first(
            cause,
            decision=decision,
            attempt=attempt,
            hit=self._outside.members.by_uid(cause.pod.uid) if isinstance(cause, Fault) else None,
            started_at=self._outside.now(),
        )
        return NewRound(
            gang=self._gang.key,
            attempt=attempt,
            epoch=self._term.epoch,
            status=told,
            owner=self._gang.owner(),
            gang_uid=self._gang.uid(),
        )

    async def write_down(self, new: NewRound, *, request: Restart | None) -> Begun:
        """Have it written down, in the object that asks for it where there is one."""
        restarts = self._outside.restarts
        begun = await (restarts.take(request, new) if request is not None else restarts.create(new))
        if not begun.durable:
            self._outside.metrics.not_durable.inc()
        return begun

    def begin(self, case: Case, decision: Decision, *, new: NewRound, begun: Begun) -> Conducting:
        """Return the round that has been written down, under way."""
        log.info(
            "round.begun",
            round=begun.ref.id,
            gang=str(self._gang.key),
            attempt=new.attempt,
            **story.ids_of(case.cause),
            cause=story.code_of(case.cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            durable=begun.durable,
        )
        try:
            return self._set_out(case, decision, ref=begun.ref)
        except Exception:  # its object must not stay behind as that of a round under way
            why = "a defect of the controller; its log has the traceback"
            told = story.failed(new.status, reason=story.INTERNAL, why=why, now=self._outside.now())
            self._outside.restarts.set_status(begun.ref.id, told)
            raise

    def resume(self, restart: Restart) -> Conducting:
        """Return a round that a former leader has begun, under way again."""
        ref = restart.ref
        assert ref is not None
        kept = status.parse(restart.status, created_at=restart.created_at)
        members = self._gang.members()
        first = machine.resume(
            ref,
            kept=kept,
            members=members,
            nodes=self._gang.nodes(members),
            told=(),
            opted_in_namespaces=self._outside.policy.namespaces,
            limits=story.limits(self._outside.policy.limits, restart),
            max_unavailable=restart.spec.unavailable(len(members)),
            now=self._outside.now(),
        )
        log.info("round.resumed", round=ref.id, gang=str(self._gang.key), attempt=ref.attempt, epoch=self._term.epoch)
        past = status.past(restart.status, created_at=restart.created_at)
        self._gang.begun(ref, past, uid=restart.gang_uid)
        return self._conducting(first, restart=restart, code=kept.trigger.code, message=kept.trigger.message)

    def _set_out(self, case: Case, decision: Decision, *, ref: RoundRef) -> Conducting:
        """Begin with the members as they are now."""
        members, now = self._gang.members(), self._outside.now()
        self._outside.jobsets.begun(ref, case.cause, now=now)
        self._gang.begun(ref, story.past_of(case.cause, members=members, now=now), uid=self._gang.uid())
        first = machine.begin(
            ref,
            cause=case.cause,
            decision=decision,
            members=members,
            nodes=self._gang.nodes(members),
            connected=self._gang.connected(members),
            opted_in_namespaces=self._outside.policy.namespaces,
            limits=story.limits(self._outside.policy.limits, case.restart),
            now=now,
        )
        code, message = story.code_of(case.cause), story.message_of(case.cause)
        return self._conducting(first, restart=case.restart, code=code, message=message)

    def _conducting(self, first: Advance, *, restart: Restart | None, code: str, message: str) -> Conducting:
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
        return Conducting(first, orders=orders, outside=self._outside, over=self._over)
