"""Attempt a request: gather the facts, decide on them, and carry out the restart that is admitted."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from kubemend.agent.actuator import turns
from kubemend.agent.actuator.next_names import NameAhead
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerSummary, PodRef, PodView
from kubemend.agent.restart import admission, cache, clone, process
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import planning, runtime_state
from kubemend.agent.restarts.budgets import Budgets, Counted
from kubemend.agent.restarts.decision_reports import DecisionReports
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.executor import RestartExecutor
from kubemend.agent.restarts.requests import Request, SteppedDown
from kubemend.common.coordination import FaultKind

_LATE = 1.0
"""Seconds after which the question whether the cause still holds is asked again: a slow disk delays the first step."""

_UNLIMITED = admission.OwnerFacts(job_restarts_left=admission.UNLIMITED_BACKOFF)
"""The assumption while the owner is not read: it does not matter to most restarts."""


class Attempts:
    """Attempt requests. The caller holds the pod, so that no other restart of it is decided or carried out."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        budgets: Budgets,
        executor: RestartExecutor,
        reports: DecisionReports,
        now: Callable[[], float],
        since_boot: Callable[[], float],
        opted_in_namespaces: frozenset[str],
        own_pod_uid: str | None,
        can_hold: bool,
        dry_run: bool,
    ) -> None:
        self._dependencies = dependencies
        self._budgets = budgets
        self._executor = executor
        self._reports = reports
        self._now = now
        self._since_boot = since_boot
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid
        self._can_hold = can_hold
        self._dry_run = dry_run

    @contextlib.asynccontextmanager
    async def name_reserved(self, request: Request) -> AsyncIterator[None]:
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
        decision = admission.decide(self._facts(request, cause, pod, target=target, owner=_UNLIMITED), now=self._now())
        if decision.verb is not admission.Verb.ACT or request.target.name not in decision.orders:
            return None
        return planning.name_ahead(self._dependencies.runtime, target)

    async def attempt(self, request: Request) -> admission.Decision:
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

    def _pod(self, ref: PodRef) -> PodView | None:
        """Return the pod as the API server has it, where a static pod has another UID than in the runtime."""
        pods = self._dependencies.pods
        if (pod := pods.pods().get(ref.uid)) is not None:
            return pod
        named = pods.by_name(ref.namespace, ref.name)
        if named is None or named.annotations.get(admission.MIRROR_ANNOTATION) != ref.uid:
            return None
        return replace(named, ref=ref)

    async def _admit(self, request: Request) -> admission.Decision:
        """Decide now, and restart if admitted. HOLD if the runtime or the journal could not be read."""
        cause, stepped_down = request.cause(), request.stepped_down
        pod = self._pod(request.target.pod)
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
            if stepped_down is not None and not stepped_down.not_alike and target is not None:
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
                return await self.attempt(request)
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
            decision = await self.attempt(request)  # the program may have ended
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
