"""Admit and run restart requests: serialized per pod, concurrent across pods."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import progress
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid
from kubemend.agent.restart import admission, budget, intents
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import config_shares, restart_proof
from kubemend.agent.restarts.attempts import Attempts
from kubemend.agent.restarts.budgets import BudgetGauges, Budgets
from kubemend.agent.restarts.config_shares import ConfigShare, NoRoomError
from kubemend.agent.restarts.decision_reports import DecisionReports
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.executor import RestartExecutor, RoundHooks
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.requests import ProgressFanout, Request, SteppedDown
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.agent.restarts.slots import PodLocks, Slots
from kubemend.common import budgets, contained
from kubemend.common.coordination import FaultAnswer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limit restarts.

    - ``retry_seconds``: for how long a request that cannot be decided is kept, waits for a budget not counted
    - ``parallel_pods``: pods whose restarts make calls at the same time
    """

    retry_seconds: float = 600.0
    parallel_pods: int = 8


_ASK_AGAIN = 1.0
_LONGEST_WAIT = 30.0
"""Seconds between checks of a request that a budget has put on hold, because its cause may have ended."""


class RestartScheduler:
    """Run restart requests. A request on hold does not count as active."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        store: Store,
        metrics: Metrics,
        now: Callable[[], float],
        opted_in_namespaces: frozenset[str] = frozenset(),
        own_pod_uid: str | None = None,
        can_hold: bool = False,
        dry_run: bool = False,
        limits: Limits | None = None,
        storm: budgets.Window = budget.STORM,
        suspects: SuspicionTracker | None = None,
        reattach_timer: DeviceReattachTimer | None = None,
        next_steps: NextStepTimer | None = None,
        gangs: ports.Gangs = ports.NO_GANGS,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._dependencies = dependencies
        self._metrics = metrics
        self._now = now
        self._limits = limits if limits is not None else Limits()
        self._locks = PodLocks()
        self._slots = Slots(self._limits.parallel_pods)
        self._configs = config_shares.room()
        self._for_faults: dict[ContainerRef, ProgressFanout] = {}
        self._for_people: dict[ContainerRef, ProgressFanout] = {}
        self._reports = DecisionReports(dependencies, metrics=metrics, now=now, suspects=suspects)
        self._gangs = gangs
        self._budgets = Budgets(store=store, now=now, storm=storm)
        metrics.watch(BudgetGauges(self._budgets, pods=dependencies.pods, now=now))
        self._executor = RestartExecutor(
            dependencies=dependencies,
            store=store,
            metrics=metrics,
            now=now,
            suspects=suspects,
            reattach_timer=reattach_timer,
            next_steps=next_steps,
        )
        self._attempts = Attempts(
            dependencies=dependencies,
            budgets=self._budgets,
            executor=self._executor,
            reports=self._reports,
            now=now,
            since_boot=since_boot,
            opted_in_namespaces=opted_in_namespaces,
            own_pod_uid=own_pod_uid,
            can_hold=can_hold,
            dry_run=dry_run,
        )

    @property
    def quiet(self) -> asyncio.Event:
        """Is set while no restart is at work (``RestartExecutor``)."""
        return self._executor.quiet

    async def submit(self, request: Request) -> None:
        """Handle one request to its end.

        Concurrent requests for a container are coalesced, unless the fault occurred after the successor started; at
        most ``MOST_FOLLOWERS`` wait. A fault is reported to the hub first. An internal error ends this request only.
        """
        await self._contained(replace(request, known_at=self._now()), self._handle)

    async def _handle(self, request: Request) -> None:
        if request.round_hooks is not None:
            await self._admission_loop(request)
            return
        if request.asked is None and not request.gang_answered and await self._is_handled_by_hub(request):
            return
        while (same := self._under_way(request)) is not None:
            if request.asked is None and same.is_full:
                log.warning("restart.too_many_causes", container=str(request.target), cause=request.cause().code)
                return
            log.info("restart.already_under_way", container=str(request.target), cause=request.cause().code)
            await same.join(request.followed)
            if request.asked is not None or same.settled(request.cause().happened_at):
                return
            request = replace(request, was_postponed=request.was_postponed or same.was_postponed)
        under_way = self._for_faults if request.asked is None else self._for_people
        followers = under_way[request.target] = ProgressFanout(request.followed, cause=request.cause)
        try:
            await self._contained(replace(request, followed=followers), self._admission_loop)
        finally:
            del under_way[request.target]
            followers.end()

    async def _contained(self, request: Request, work: Callable[[Request], Awaitable[None]]) -> None:
        with contained.within(contained.Part.RESTART, request.target) as done:
            await work(request)
        if done.error is not None:
            with contained.within(contained.Part.RESTART, request.target):
                self._reports.internal_error(request, done.error)

    def turn(self, pod: PodUid) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold a pod during the block; its other restarts wait for the end."""
        return self._locks.turn(pod)

    async def resume(
        self, plan: RestartPlan, *, cause: admission.Cause, round_hooks: RoundHooks, holding: HoldSet
    ) -> Outcome:
        """Finish a restart that a previous agent started for a round; return its outcome.

        After one that ``is_decided_again`` its intents stay open: submit another request, and ``close`` them then.
        """
        async with self._locks.turn(plan.target.pod.uid, for_round=True):
            return await self._executor.resume(plan, cause=cause, round_hooks=round_hooks, holding=holding)

    async def close(self, plan: RestartPlan, outcome: Outcome, *, stepped_down: SteppedDown | None = None) -> None:
        """Close the intents of a resumed restart in the journal. Never fails.

        ``stepped_down`` is what another strategy was to take over: without a successor nothing was restarted.
        """
        if stepped_down is not None and stepped_down.not_alike:
            stepped_down.counted.cancel()
            await stepped_down.counted.erase()
        await self._executor.close(plan, outcome)

    async def stepped_down(self, begun: Sequence[intents.AnyIntent], outcome: Outcome) -> SteppedDown | None:
        """Return the part of a previous agent's restart that another strategy takes over. Raises JournalError.

        None if the restart no longer counts, or if its strategy has not stepped down.
        """
        await self._budgets.load()
        counted = self._budgets.of_previous(begun)
        if counted is None or outcome.result not in (Result.STEPPED_DOWN, Result.NOT_ALIKE):
            return None
        not_alike = outcome.result is Result.NOT_ALIKE
        return SteppedDown(outcome.detail, counted, not_alike, tuple(intent.id for intent in begun))

    async def uncount(self, begun: Sequence[intents.AnyIntent]) -> None:
        """Count a previous agent's restart no longer, because it has changed nothing. Raises JournalError."""
        await self._budgets.load()
        if (counted := self._budgets.of_previous(begun)) is not None:
            counted.cancel()
            await counted.erase()

    async def take_over(self, plan: RestartPlan, outcome: Outcome, *, reason: str) -> bool:
        """Carry out a previous agent's restart by another strategy, because its own one has stepped down since.

        One that has changed nothing is decided again. Its intents leave the journal when the other one's enters it.
        Return False if nothing is done, because the count of the restart, which has the time and the device of its
        fault, is too old. Raises JournalError.
        """
        await self._budgets.load()
        if (counted := self._budgets.of_previous(plan.entries)) is None:
            return False
        if (stepped_down := await self.stepped_down(plan.entries, outcome)) is None:
            counted.cancel()
        devices = await restart_proof.resumed_devices(self._dependencies, plan)
        facts = self._dependencies.device_facts
        begun, first = counted.restart, plan.entries[0]
        found = admission.Cause(
            reason, reason, happened_at=begun.fault_at, device=begun.device, container=first.target_old
        )

        def cause() -> admission.Cause:
            return replace(found, action=facts.action(devices)) if facts is not None and devices else found

        await self.submit(Request(first.target, cause, devices=devices, gang_answered=True, stepped_down=stepped_down))
        await counted.erase()
        return True

    async def _is_handled_by_hub(self, request: Request) -> bool:
        """Return whether the hub handles the fault, or has decided against a restart."""
        cause = request.cause()
        taken = await self._gangs.report_fault(request.target, cause, kind=request.kind)
        if taken is FaultAnswer.ROUND:
            log.info("restart.left_to_round", container=str(request.target), cause=cause.code)
        elif taken is FaultAnswer.NOTHING:
            detail = "the controller has decided that its gang is not restarted"
            refusal = admission.Decision(admission.Verb.REFUSE, Reason.LEFT_TO_GANG, detail)
            self._reports.decided(request, refusal)
        return taken is not FaultAnswer.ALONE

    def _under_way(self, request: Request) -> ProgressFanout | None:
        """Return the running request that a new one joins.

        A fault's request on hold (its budget is spent) does not block a manual one, nor the reverse: the second one
        finds the container replaced.
        """
        for_fault = self._for_faults.get(request.target)
        if request.asked is None:
            return for_fault
        for_person = self._for_people.get(request.target)
        return for_person if for_person is not None or for_fault is None or not for_fault.acting else for_fault

    async def _admission_loop(self, request: Request) -> None:
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._limits.retry_seconds
        last_logged: tuple[Reason, float | None] | None = None
        while True:
            decision = await self._with_room(request)
            if decision.verb is not admission.Verb.POSTPONE:
                return
            if decision.retry_at is not None and not request.was_postponed:
                request = replace(request, was_postponed=True)
                continue
            if (decision.reason, decision.retry_at) != last_logged:
                self._reports.decided(request, decision)
                last_logged = decision.reason, decision.retry_at
            if decision.retry_at is not None:  # a budget may have it wait for an hour, and the disk be full just then
                give_up_at = clock() + self._limits.retry_seconds
            elif clock() >= give_up_at:
                self._reports.gave_up(request, decision, after=self._limits.retry_seconds)
                return
            await self._until_worth_asking_again(request, decision)

    async def _with_room(self, request: Request) -> admission.Decision:
        """Decide, and restart if admitted; wait for room for the configs before, holding neither the pod nor a slot."""
        share = self.config_share(request.target.pod, waits=request.round_hooks is None)
        request = replace(request, admit=share.admit)
        while True:
            try:
                with share:
                    async with self._pod_turn(request), self._attempts.name_reserved(request):
                        return await self._attempts.attempt(request)
            except NoRoomError as short:
                needed = short.needed
            log.info("restart.waits_for_memory", container=str(request.target), bytes=needed)
            request.followed.notify(progress.Queued())
            await share.wait(needed)

    def config_share(self, pod: PodRef, *, waits: bool) -> ConfigShare:
        """Return a share of the memory for configs of restarts in progress (``ConfigShare``)."""
        return ConfigShare(self._configs, pod.namespace, waits=waits)

    async def _until_worth_asking_again(self, request: Request, decision: admission.Decision) -> None:
        """Wait for the decision's ``retry_at``; without one, until the pod changes, at most 1 s."""
        wait = _ASK_AGAIN
        if decision.retry_at is not None:
            wait = min(max(decision.retry_at - self._now(), 0.05), _LONGEST_WAIT)
        uid = request.target.pod.uid
        before = self._dependencies.pods.pods().get(uid)
        await self._dependencies.pods.wait_for(uid, lambda pod: pod is not before, timeout=wait)

    @contextlib.asynccontextmanager
    async def _pod_turn(self, request: Request) -> AsyncIterator[None]:
        """Wait for the pod's lock and a slot. A round's members need no slot: they wait for each other, held."""
        uid = request.target.pod.uid
        if request.round_hooks is not None:
            async with self._locks.turn(uid, for_round=True):
                yield
            return
        namespace = request.target.pod.namespace
        if self._locks.is_locked(uid) or self._slots.is_full(namespace):
            request.followed.notify(progress.Queued())
        async with self._locks.turn(uid), self._slots.turn(namespace):
            yield
