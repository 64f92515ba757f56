"""Carry restarts through: gather, decide, journal, act, verify, report. One at a time per pod, pods side by side."""

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from agent.actuator import swap as swap_actuator
from agent.actuator.outcomes import Outcome, Result
from agent.cri.errors import CriError
from agent.engine import aftermath, conditions, ports, targets
from agent.engine.metrics import Metrics
from agent.engine.recovery import STALE_AFTER
from agent.history.store import HistoryError, Store
from agent.model.devices import GpuUuid
from agent.model.workloads import ContainerRef, PodUid, PodView
from agent.restart import admission, clone, intents, swap, verification

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and how many pods are restarted at once.

    ``held`` bounds how long a restart that cannot be decided is kept, ``history`` how far back the budget looks.
    """

    held: float = 600.0
    history: float = 24 * 3600.0
    parallel_pods: int = 8


@dataclass(frozen=True, slots=True)
class Request:
    """A wish to restart one container. ``devices`` must answer afterwards; ``cause`` is re-read while it is held."""

    target: ContainerRef
    cause: Callable[[], admission.Cause]
    devices: frozenset[GpuUuid]


@dataclass(frozen=True, slots=True)
class _Done:
    """A restart that was acted on."""

    intent: intents.Intent
    cause: admission.Cause
    outcome: Outcome
    restart_count: int


_ASK_AGAIN = 1.0


class Restarts:
    """Runs requests. ``quiet`` is set while no restart is being acted on (held ones do not count)."""

    def __init__(
        self,
        *,
        outside: ports.Outside,
        store: Store,
        metrics: Metrics,
        now: Callable[[], float],
        opted_in_namespaces: frozenset[str] = frozenset(),
        own_pod_uid: str | None = None,
        dry_run: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._outside = outside
        self._aftermath = aftermath.Aftermath(outside=outside)
        self._store = store
        self._metrics = metrics
        self._now = now
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid
        self._dry_run = dry_run
        self._limits = limits if limits is not None else Limits()
        self._locks: defaultdict[PodUid, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = asyncio.Semaphore(self._limits.parallel_pods)
        self._under_way: set[ContainerRef] = set()
        self._acting = 0
        self.quiet = asyncio.Event()
        self.quiet.set()

    async def handle(self, request: Request) -> None:
        """Carry one request to its end. A second one for the same container meanwhile is the same request."""
        if request.target in self._under_way:
            log.info("restart.already_under_way", container=str(request.target), cause=request.cause().code)
            return
        self._under_way.add(request.target)
        try:
            await self._until_decided(request)
        finally:
            self._under_way.discard(request.target)

    async def _until_decided(self, request: Request) -> None:
        give_up_at = self._now() + self._limits.held
        last_reason: admission.Reason | None = None
        while True:
            async with self._pod_turn(request.target.pod.uid):
                decision = await self._once(request)
            if decision.verb is not admission.Verb.HOLD:
                return
            if decision.reason is not last_reason:
                self._announce(request, decision)
                last_reason = decision.reason
            if self._now() >= give_up_at and decision.retry_at is None:
                log.warning("restart.given_up", container=str(request.target), reason=decision.reason.value)
                return
            await self._until_worth_asking_again(request, decision)

    async def _until_worth_asking_again(self, request: Request, decision: admission.Decision) -> None:
        """Wait for the time that the decision names; without one, until the pod changes, at most a second."""
        wait = _ASK_AGAIN if decision.retry_at is None else max(decision.retry_at - self._now(), 0.05)
        uid = request.target.pod.uid
        before = self._outside.pods.pods().get(uid)
        await self._outside.pods.wait_for(uid, lambda pod: pod is not before, timeout=wait)

    @contextlib.asynccontextmanager
    async def _pod_turn(self, uid: PodUid) -> AsyncIterator[None]:
        lock = self._locks[uid]
        try:
            async with lock, self._slots:
                yield
        finally:
            if not lock.locked() and self._locks.get(uid) is lock:
                del self._locks[uid]

    async def _once(self, request: Request) -> admission.Decision:
        """Decide now; act when admitted. Whatever could not be asked makes it a HOLD."""
        cause = request.cause()
        pod = self._outside.pods.pods().get(request.target.pod.uid)
        try:
            target = await targets.find(self._outside.runtime, request.target)
            owner = await self._outside.owners.facts(pod) if pod is not None else None
            past = await self._store.restarts_of(request.target, since=self._now() - self._limits.history)
        except CriError as error:
            return admission.Decision(admission.Verb.HOLD, admission.Reason.RUNTIME_UNAVAILABLE, str(error))
        except HistoryError as error:
            return admission.Decision(admission.Verb.HOLD, admission.Reason.JOURNAL_UNAVAILABLE, str(error))
        facts = admission.Facts(
            target=request.target,
            cause=cause,
            pod=pod,
            runtime=target.facts() if target is not None else None,
            owner=owner,
            past_restarts=past,
            opted_in_namespaces=self._namespaces,
            own_pod_uid=self._own_pod_uid,
        )
        decision = admission.decide(facts, now=self._now())
        if decision.verb is admission.Verb.REFUSE:
            self._announce(request, decision)
        if decision.verb is not admission.Verb.ACT:
            return decision
        assert target is not None
        assert pod is not None
        return await self._act(request, cause, decision, target=target, pod=pod)

    async def _act(
        self,
        request: Request,
        cause: admission.Cause,
        decision: admission.Decision,
        *,
        target: targets.Target,
        pod: PodView,
    ) -> admission.Decision:
        assert decision.order is not None
        intent = intents.Intent(
            id=uuid.uuid4().hex[:12],
            target=request.target,
            sandbox_id=target.view.sandbox_id,
            old=target.view.id,
            old_attempt=max(view.attempt for view in target.siblings),
            order=decision.order,
            reason=cause.code,
            created_at=self._now(),
            grace_seconds=decision.grace_seconds,
        )
        try:
            material = await targets.material(
                self._outside.runtime, target, intent=intent, pod=pod, processes=self._outside.processes
            )
        except clone.CloneRefusedError as error:
            refusal = replace(
                decision, verb=admission.Verb.REFUSE, reason=admission.Reason.RUNTIME_HIDES_CONFIG, detail=str(error)
            )
            self._announce(request, refusal)
            return refusal
        except CriError as error:
            return admission.Decision(admission.Verb.HOLD, admission.Reason.RUNTIME_UNAVAILABLE, str(error))
        if self._dry_run:
            self._announce(request, replace(decision, verb=admission.Verb.REFUSE, reason=admission.Reason.DRY_RUN))
            return replace(decision, verb=admission.Verb.REFUSE, reason=admission.Reason.DRY_RUN)
        try:
            await self._store.begin(intent)
        except HistoryError as error:
            return admission.Decision(admission.Verb.HOLD, admission.Reason.JOURNAL_UNAVAILABLE, str(error))
        self._announce(request, decision, restart=intent.id)
        with self._act_noted():
            outcome = await self._to_the_end(intent, target, material)
        done = _Done(intent=intent, cause=cause, outcome=outcome, restart_count=material.successor.restart_count)
        await self._conclude(done, devices=request.devices)
        return decision

    @contextlib.contextmanager
    def _act_noted(self) -> Iterator[None]:
        self._acting += 1
        self.quiet.clear()
        try:
            yield
        finally:
            self._acting -= 1
            if self._acting == 0:
                self.quiet.set()

    async def _to_the_end(
        self, intent: intents.Intent, target: targets.Target, work: swap_actuator.Material
    ) -> Outcome:
        """Carry it out, again while the runtime stays away; what has grown stale is taken back where that is safe."""
        outcome = await self._outside.actuator.carry_out(intent, material=work, seen=target.siblings)
        while outcome.result is Result.UNFINISHED and self._now() - intent.created_at < self._limits.held:
            log.warning("restart.unfinished", restart=intent.id, detail=outcome.detail)
            stale = self._now() - intent.created_at > STALE_AFTER
            outcome = await self._outside.actuator.carry_out(
                intent, material=work, resolution=swap.Resolution.UNDO if stale else swap.Resolution.FINISH
            )
        return outcome

    async def _conclude(self, done: _Done, *, devices: frozenset[GpuUuid]) -> None:
        """Report at once, verify, wait for kubelet's consent, report again, and close the intent.

        An unfinished intent stays open in the journal: the agent's next start takes it up.
        """
        self._count(done)
        self._report(done, checks=(), settled=not done.outcome.result.restarted)
        if done.outcome.result.restarted:
            (outcome, settled), answer = await asyncio.gather(
                self._aftermath.settle(done.intent, done.outcome), self._aftermath.devices_answer(devices)
            )
            done = replace(done, outcome=outcome)
            self._report(done, checks=(answer, *settled), settled=True)
        if done.outcome.result is not Result.UNFINISHED:
            await self._close(done.intent, done.outcome)

    async def _close(self, intent: intents.Intent, outcome: Outcome) -> None:
        try:
            await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())
        except HistoryError as error:
            log.error("restart.not_closed", restart=intent.id, error=str(error))  # a replay finds it done

    def _announce(self, request: Request, decision: admission.Decision, *, restart: str | None = None) -> None:
        """One log event, one count and, unless the pod never opted in, one condition per decision."""
        cause = request.cause()
        self._metrics.decisions.labels(decision.verb.value, decision.reason.value).inc()
        log.info(
            "restart.decided",
            container=str(request.target),
            pod_uid=request.target.pod.uid,
            cause=cause.code,
            verb=decision.verb.value,
            reason=decision.reason.value,
            detail=decision.detail,
            **({"restart": restart} if restart is not None else {}),
        )
        silent = (admission.Reason.NOT_OPTED_IN, admission.Reason.OWN_POD, admission.Reason.ALREADY_REPLACED)
        if decision.verb is not admission.Verb.ACT and decision.reason not in silent:
            condition = conditions.for_refusal(container=request.target.name, cause=cause, decision=decision)
            self._outside.reporter.set(request.target.pod, condition)

    def _count(self, done: _Done) -> None:
        strategy = done.intent.strategy.value
        self._metrics.restarts.labels(strategy, done.cause.code, done.outcome.result.value).inc()
        for phase, seconds in done.outcome.phases.items():
            self._metrics.restart_phase.labels(strategy, phase).observe(seconds)
        if done.outcome.result.restarted:
            since_fault = self._now() - done.cause.happened_at
            self._metrics.restart_phase.labels(strategy, "fault_to_running").observe(since_fault)

    def _report(self, done: _Done, *, checks: Sequence[verification.Check], settled: bool) -> None:
        condition = conditions.for_restart(
            intent=done.intent,
            restart_count=done.restart_count,
            cause=done.cause,
            outcome=done.outcome,
            checks=checks,
            settled=settled,
        )
        self._outside.reporter.set(done.intent.target.pod, condition)
        log.info(
            "restart.finished" if settled else "restart.acted",
            restart=done.intent.id,
            container=str(done.intent.target),
            cause=done.cause.code,
            result=done.outcome.result.value,
            detail=done.outcome.detail,
            milliseconds={name: round(seconds * 1000, 1) for name, seconds in done.outcome.phases.items()},
            checks={check.name: check.state.value for check in checks},
        )
