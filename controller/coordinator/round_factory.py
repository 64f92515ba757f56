"""Begin a gang's rounds: persisted first, then started. Resume the rounds of a previous leader."""

import contextlib
from collections.abc import Callable

import structlog

from kubemend.controller.coordinator import round_report, wire
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.gang_state import Gang
from kubemend.controller.coordinator.pending import PendingCause
from kubemend.controller.coordinator.round_runner import RoundRunner
from kubemend.controller.decisions.facts import Decision
from kubemend.controller.leader.election import Term
from kubemend.controller.model.faults import Cause, Fault, Request
from kubemend.controller.model.rounds import FaultReported, RoundRef
from kubemend.controller.restarts.objects import NewRound, Restart
from kubemend.controller.restarts.store import Begun
from kubemend.controller.rounds import machine, status
from kubemend.controller.rounds.states import Advance

log = structlog.get_logger(__name__)


class RoundFactory:
    """Begin one gang's rounds. ``over`` is called with each when it ends, which may be at once."""

    def __init__(
        self,
        gang: Gang,
        *,
        dependencies: Dependencies,
        term: Term,
        over: Callable[[RoundRunner, tuple[FaultReported, ...]], None],
    ) -> None:
        self._gang = gang
        self._dependencies = dependencies
        self._term = term
        self._over = over

    def planned(self, cause: Cause, decision: Decision) -> NewRound:
        """Return the round to persist before anything is done."""
        attempt = self._gang.next_attempt()
        first = status.first(
            cause,
            decision=decision,
            attempt=attempt,
            hit=self._dependencies.members.by_uid(cause.pod.uid) if isinstance(cause, Fault) else None,
            started_at=self._dependencies.now(),
            members=self._gang.members(),
        )
        return NewRound(
            gang=self._gang.key,
            attempt=attempt,
            epoch=self._term.epoch,
            status=first,
            owner=self._gang.owner(),
            gang_uid=self._gang.uid(),
        )

    async def write_down(self, new: NewRound, *, request: Restart | None) -> Begun:
        """Persist the round: in the object that requested it if there is one, else in a new one."""
        restarts = self._dependencies.restarts
        begun = await (restarts.adopt(request, new) if request is not None else restarts.create(new))
        if not begun.durable:
            self._dependencies.metrics.not_durable.inc()
        return begun

    def begin(self, case: PendingCause, decision: Decision, *, new: NewRound, begun: Begun) -> RoundRunner:
        """Return the persisted round, under way."""
        log.info(
            "round.begun",
            round=begun.ref.id,
            gang=str(self._gang.key),
            attempt=new.attempt,
            **round_report.ids_of(case.cause),
            cause=round_report.code_of(case.cause),
            kind=decision.kind.value,
            reason=decision.reason.value,
            durable=begun.durable,
        )
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.give_up, new, begun)
            runner = self._set_out(case, decision, ref=begun.ref)
            on_error.pop_all()
        return runner

    def give_up(self, new: NewRound, begun: Begun) -> None:
        """Fail a persisted round that does not begin because of an internal error: else it would look under way."""
        reason = "an internal error of the controller; see the traceback in its log"
        failed = round_report.failed(
            new.status, reason=round_report.INTERNAL, message=reason, now=self._dependencies.now()
        )
        self._dependencies.restarts.set_status(begun.ref, failed)

    def resume(self, restart: Restart) -> RoundRunner:
        """Return a round that a previous leader has begun, under way again."""
        ref = restart.ref
        assert ref is not None
        kept = status.parse(restart.status, created_at=restart.created_at)
        members = self._gang.members()
        first = machine.resume(
            ref,
            kept=kept,
            members=members,
            nodes=self._gang.nodes(members),
            opted_in_namespaces=self._dependencies.policy.namespaces,
            limits=round_report.limits(self._dependencies.policy.limits, restart),
            max_unavailable=restart.spec.unavailable(len(members)),
            now=self._dependencies.now(),
        )
        log.info("round.resumed", round=ref.id, gang=str(self._gang.key), attempt=ref.attempt, epoch=self._term.epoch)
        past = status.past(restart.status, created_at=restart.created_at)
        self._gang.begun(ref, past, uid=restart.gang_uid)
        return self._runner(first, restart=restart, code=kept.trigger.code, message=kept.trigger.message)

    def _set_out(self, case: PendingCause, decision: Decision, *, ref: RoundRef) -> RoundRunner:
        """Begin with the current members."""
        members, now = self._gang.members(), self._dependencies.now()
        self._dependencies.jobsets.begun(ref, case.cause, now=now)
        self._gang.begun(ref, round_report.past_of(case.cause, members=members, now=now), uid=self._gang.uid())
        first = machine.begin(
            ref,
            cause=case.cause,
            decision=decision,
            members=members,
            nodes=self._gang.nodes(members),
            connected=self._gang.connected(members),
            opted_in_namespaces=self._dependencies.policy.namespaces,
            limits=round_report.limits(self._dependencies.policy.limits, case.restart),
            now=now,
        )
        code, message = round_report.code_of(case.cause), round_report.message_of(case.cause)
        return self._runner(first, restart=case.restart, code=code, message=message)

    def _runner(self, first: Advance, *, restart: Restart | None, code: str, message: str) -> RoundRunner:
        spec = restart.spec if restart is not None else None
        request_uid = restart.uid if restart is not None and isinstance(first.round.cause, Request) else ""
        orders = wire.Orders(
            wire.round_id(first.round.ref, request_uid=request_uid),
            attempt=first.round.ref.attempt,
            code=code,
            message=message,
            hold_seconds=first.round.limits.hold,
            strategy=spec.strategy if spec is not None else "",
            grace_seconds=spec.grace_seconds if spec is not None else None,
            containers=tuple(spec.containers) if spec is not None else (),
            find=self._dependencies.members.by_uid,
        )
        self._dependencies.metrics.rounds_active.inc()
        return RoundRunner(first, orders=orders, dependencies=self._dependencies, over=self._over)
