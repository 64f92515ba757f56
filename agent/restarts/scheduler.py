"""Admit and run restart requests: serialized per pod, concurrent across pods."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import progress, turns
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.next_names import NameAhead
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary, PodRef, PodUid, PodView
from kubemend.agent.restart import admission, budget, cache, clone, intents, process
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import config_shares, planning, restart_proof, runtime_state
from kubemend.agent.restarts.budgets import BudgetGauges, Budgets, Counted
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
from kubemend.common.coordination import FaultAnswer, FaultKind

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limit restarts.

    - ``retry_seconds``: for how long a request that cannot be decided is kept
    - ``parallel_pods``: pods whose restarts make calls at the same time
    """

    retry_seconds: float = 600.0
    parallel_pods: int = 8


_ASK_AGAIN = 1.0
_LATE = 1.0
"""Seconds after which the question whether the cause still holds is asked again: a slow disk delays the first step."""
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
        self._since_boot = since_boot
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid
        self._can_hold = can_hold
        self._dry_run = dry_run
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
        uid = plan.target.pod.uid
        async with self._locks.turn(uid, waiting=self._executor.expedite(uid)):
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

    async def take_over(self, plan: RestartPlan, outcome: Outcome, *, reason: str) -> bool:
        """Carry out a previous agent's restart by another strategy, because its own one has stepped down since.

        Its intents leave the journal when the other one's enters it. Return False if nothing is done, because the count
        of the restart, which has the time and the device of its fault, is too old. Raises JournalError.
        """
        if (stepped_down := await self.stepped_down(plan.entries, outcome)) is None:
            return False
        devices = await restart_proof.resumed_devices(self._dependencies, plan)
        facts = self._dependencies.device_facts
        begun, first = stepped_down.counted.restart, plan.entries[0]
        found = admission.Cause(
            reason, reason, happened_at=begun.fault_at, device=begun.device, container=first.target_old
        )

        def cause() -> admission.Cause:
            return replace(found, action=facts.action(devices)) if facts is not None and devices else found

        await self.submit(Request(first.target, cause, devices=devices, gang_answered=True, stepped_down=stepped_down))
        await stepped_down.counted.erase()
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
            if clock() >= give_up_at and decision.retry_at is None:
                log.warning("restart.timed_out", container=str(request.target), reason=decision.reason.value)
                return
            await self._until_worth_asking_again(request, decision)

    async def _with_room(self, request: Request) -> admission.Decision:
        """Decide, and restart if admitted; wait for room for the configs before, holding neither the pod nor a slot."""
        share = self.config_share(request.target.pod, waits=request.round_hooks is None)
        request = replace(request, admit=share.admit)
        while True:
            try:
                with share:
                    async with self._pod_turn(request), self._name_reserved(request):
                        return await self._decide(request)
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
            async with self._locks.turn(uid, waiting=self._executor.expedite(uid)):
                yield
            return
        namespace = request.target.pod.namespace
        if self._locks.is_locked(uid) or self._slots.is_full(namespace):
            request.followed.notify(progress.Queued())
        async with self._locks.turn(uid), self._slots.turn(namespace):
            yield

    @contextlib.asynccontextmanager
    async def _name_reserved(self, request: Request) -> AsyncIterator[None]:
        """Reserve the next name for the successor of a container that has ended, if it will probably be restarted.

        The reservation takes as long as the facts for the decision, and is released if no restart has taken it over.
        """
        ahead = self._name_ahead(request)
        if ahead is None:
            yield
            return
        swapper = self._dependencies.actuators.swap
        swapper.reserve_ahead(ahead)
        try:
            yield
        finally:
            await swapper.give_back_ahead(ahead.old.id)

    def _name_ahead(self, request: Request) -> NameAhead | None:
        """Return the name to reserve, from the known facts about the container; None if it is not worth it."""
        if request.kind is not FaultKind.EXIT or self._dry_run:
            return None
        cause = request.cause()
        target = runtime_state.as_known(
            self._dependencies.runtime, request.target, ended=cause, known=self._dependencies.events.containers()
        )
        if target is None:
            return None
        pod = self._dependencies.pods.pods().get(request.target.pod.uid)
        decision = admission.decide(
            self._facts(request, cause, pod, target=target, owner=admission.OwnerFacts()), now=self._now()
        )
        if decision.verb is not admission.Verb.ACT or request.target.name not in decision.orders:
            return None
        return planning.name_ahead(self._dependencies.runtime, target)

    async def _decide(self, request: Request) -> admission.Decision:
        """Decide now, and restart if admitted; of a restart that has stepped down and this one only one counts.

        One that a launcher has failed to carry out counts in any case, because the program may have ended.
        """
        if request.stepped_down is None or request.stepped_down.not_alike:
            return await self._admit(request)
        begun = False
        try:
            decision = await self._admit(request)
            begun = decision.verb is admission.Verb.ACT
            return decision
        finally:
            if not begun:
                request.stepped_down.counted.restore()

    async def _admit(self, request: Request) -> admission.Decision:
        """Decide now, and restart if admitted. HOLD if the runtime or the journal could not be read."""
        cause, stepped_down = request.cause(), request.stepped_down
        pod = self._dependencies.pods.pods().get(request.target.pod.uid)
        try:
            by_round = request.round_hooks is not None
            target = await runtime_state.find(
                self._dependencies.runtime,
                request.target,
                known=self._dependencies.events.containers(),
                ended=cause.container if request.kind is FaultKind.EXIT and not by_round else None,
                admit=request.admit,
            )
            async with turns.waiting(after=turns.SLOW):  # the API server may be away
                owner = await self._dependencies.owners.facts(pod, at_once=by_round) if pod is not None else None
            await self._budgets.load()
            if stepped_down is not None and target is not None:
                target = replace(target, launcher=process.LauncherUnavailable(stepped_down.reason))
            elif target is not None:
                launcher = await runtime_state.launcher(self._dependencies.launchers, target.info)
                stopping = await self._stopping(target.view, launcher) if request.asked is None else ""
                target = replace(target, launcher=launcher, stopping=stopping)
        except CriError as error:
            return admission.Decision(admission.Verb.POSTPONE, Reason.RUNTIME_UNAVAILABLE, str(error))
        except JournalError as error:
            return admission.Decision(admission.Verb.POSTPONE, Reason.JOURNAL_UNAVAILABLE, str(error))
        if stepped_down is not None:
            stepped_down.counted.cancel()
        facts = self._facts(request, cause, pod, target=target, owner=owner)
        if stepped_down is not None and stepped_down.not_alike and facts.runtime is not None:
            facts = replace(facts, runtime=replace(facts.runtime, not_cloneable=stepped_down.reason))
        decision = admission.decide(facts, now=self._now())
        if decision.verb is admission.Verb.ACT:
            assert target is not None
            return await self._act(request, facts, decision, target=target)
        if decision.verb is admission.Verb.POSTPONE and (reason := await request.withdrawal()):
            decision = _withdrawn(request, reason)
        if decision.verb is admission.Verb.REFUSE:
            self._reports.decided(
                request, decision, answered=admission.answered_by_us(facts, known_at=request.known_at)
            )
        return decision

    async def _stopping(
        self, view: ContainerSummary, launcher: process.Launcher | process.LauncherUnavailable | None
    ) -> str:
        """Return why a launcher that has been asked to stop may be about to end; empty for any other."""
        if not isinstance(launcher, process.Launcher) or launcher.state is not process.State.ENDING:
            return ""
        return await self._dependencies.actuators.tools.stopping(view.id, view.ref.pod, view.sandbox_id)

    def _facts(
        self,
        request: Request,
        cause: admission.Cause,
        pod: PodView | None,
        *,
        target: runtime_state.RuntimeState | None,
        owner: admission.OwnerFacts | None,
    ) -> admission.Facts:
        return admission.Facts(
            target=request.target,
            cause=cause,
            pod=pod,
            runtime=self._runtime_facts(target) if target is not None else None,
            owner=owner,
            history=self._budgets.history(request.target, device=cause.device),
            storm=self._budgets.storm,
            opted_in_namespaces=self._namespaces,
            own_pod_uid=self._own_pod_uid,
            can_hold=self._can_hold,
            asked=request.asked,
        )

    def _runtime_facts(self, target: runtime_state.RuntimeState) -> admission.RuntimeFacts:
        processes = self._dependencies.processes
        now, since_boot = self._now(), self._since_boot()
        return target.facts(
            now=now,
            stepped=runtime_state.clock_step(target.info, processes=processes, now=now, since_boot=since_boot),
            not_holdable=runtime_state.not_holdable(target.info, processes=processes),
        )

    async def _act(
        self,
        request: Request,
        facts: admission.Facts,
        decision: admission.Decision,
        *,
        target: runtime_state.RuntimeState,
    ) -> admission.Decision:
        """Run an admitted restart. Nothing may be awaited between the decision and here, where it begins to count."""
        with self._budgets.counting(facts, decision) as counted:
            return await self._begin(request, facts, decision, target=target, counted=counted)

    async def _begin(
        self,
        request: Request,
        facts: admission.Facts,
        decision: admission.Decision,
        *,
        target: runtime_state.RuntimeState,
        counted: Counted,
    ) -> admission.Decision:
        assert facts.pod is not None
        try:
            plan = await planning.prepare(
                self._dependencies,
                decision,
                target=target,
                pod=facts.pod,
                reason=facts.cause.code,
                now=self._now(),
                ended_too=request.round_hooks is not None,
                crashes=_crashes(facts),
                admit=request.admit,
            )
        except clone.CloneRefusedError as error:
            return await self._without_clone(request, facts, target=target, reason=str(error))
        except CriError as error:
            return admission.Decision(admission.Verb.POSTPONE, Reason.RUNTIME_UNAVAILABLE, str(error))
        if self._dry_run:
            refusal = replace(decision, verb=admission.Verb.REFUSE, reason=Reason.DRY_RUN)
            self._reports.decided(request, refusal)
            return refusal
        asked_at = asyncio.get_running_loop().time()
        if reason := await request.withdrawal():
            refusal = _withdrawn(request, reason)
            self._reports.decided(request, refusal)
            return refusal
        if (obstacle := admission.by_device(request.cause())) is not None:  # found since the decision
            if obstacle.verb is admission.Verb.REFUSE:
                self._reports.decided(request, obstacle)
            return obstacle
        not_copied = facts.runtime is not None and facts.runtime.not_cloneable is not None
        try:
            outcome = await self._executor.execute(
                replace(plan, stepped_down=decision.detail if not_copied else ""),
                cause=facts.cause,
                counted=counted,
                devices=request.devices,
                on_begun=lambda: self._reports.decided(request, decision, restart=plan.id),
                judge=lambda: admission.by_device(request.cause()),
                withdrawal=functools.partial(_late_withdrawal, request, asked_at=asked_at),
                followed=request.followed,
                round_hooks=request.round_hooks,
                old_pid=target.info.pid,
                takes_over=request.stepped_down.intents if request.stepped_down is not None else (),
            )
        except JournalError as error:
            return admission.Decision(admission.Verb.POSTPONE, Reason.JOURNAL_UNAVAILABLE, str(error))
        if outcome.result in (Result.ALREADY_REPLACED, Result.TRIGGER_ENDED):  # no container of the pod was touched
            await self._executor.close(plan, outcome)
            await counted.erase()
            if outcome.result is Result.ALREADY_REPLACED:
                return await self._decide(request)
            return admission.Decision(admission.Verb.POSTPONE, Reason.TRIGGER_ENDED, outcome.detail)
        if outcome.result not in (Result.STEPPED_DOWN, Result.NOT_ALIKE):
            await counted.erase()  # if it was cancelled
            return decision
        not_alike = outcome.result is Result.NOT_ALIKE
        entries = tuple(intent.id for intent in plan.entries)
        request = replace(request, stepped_down=SteppedDown(outcome.detail, counted, not_alike, entries))
        if not_alike:
            decision = await self._without_clone(request, facts, target=target, reason=outcome.detail)
        else:
            decision = await self._decide(request)  # the program may have ended
        await self._executor.close(plan, outcome)
        await counted.erase()
        return decision

    async def _without_clone(
        self, request: Request, facts: admission.Facts, *, target: runtime_state.RuntimeState, reason: str
    ) -> admission.Decision:
        """Decide again after the config turned out not to be cloneable, or its clone not to be alike."""
        assert facts.runtime is not None
        facts = replace(facts, runtime=replace(facts.runtime, not_cloneable=reason))
        decision = admission.decide(facts, now=self._now())
        if decision.verb is admission.Verb.ACT:
            return await self._act(request, facts, decision, target=target)
        if decision.verb is admission.Verb.REFUSE:
            self._reports.decided(request, decision)
        return decision


def _crashes(facts: admission.Facts) -> cache.Crashes:
    by_round = facts.asked is not None and facts.asked.by_round
    return cache.Crashes(
        facts.history.pod,
        died_at=facts.cause.happened_at,
        died=None if by_round else facts.target.name,
        requested=facts.asked is not None and not by_round,
    )


async def _late_withdrawal(request: Request, *, asked_at: float) -> str:
    """Return why the cause no longer holds, if the last answer is too old. Rounds end their members' restarts."""
    is_late = asyncio.get_running_loop().time() - asked_at > _LATE
    return await request.withdrawal() if is_late and request.round_hooks is None else ""


def _withdrawn(request: Request, message: str) -> admission.Decision:
    reason = Reason.CAUSE_GONE if request.round_hooks is None else Reason.ROUND_OVER
    return admission.Decision(admission.Verb.REFUSE, reason, message)
