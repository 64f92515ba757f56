"""Replay one restart that a previous agent left open: finish or undo it, report it, close or quarantine its intent."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError, Store, UnreadableIntent
from kubemend.agent.devices import event_messages, pod_conditions
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, intents, steps
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restart.verification import Check, CheckState
from kubemend.agent.restarts import planning, restart_proof, verifier
from kubemend.agent.restarts.config_shares import ConfigShare, NoRoomError
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.manual_requests import CODE as REQUESTED
from kubemend.agent.restarts.plan_execution import STALE_AFTER, AnyExecution, execution_of
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

TIMEOUTS = verifier.Timeouts(kubelet=5.0, pod=5.0)
"""Shorter than after a restart of this agent, because nothing new of the pod starts during the replay."""

TRY_LATER = (cri_errors.RuntimeUnavailable, cri_errors.PermissionDenied, cri_errors.NotCri, JournalError)
"""Errors that concern every intent: the runtime or the disk cannot be used now. Others are about one intent."""

_MAY_PASS = (cri_errors.DeadlineExceeded, cri_errors.ContainerBusy, cri_errors.NotFound, cri_errors.CallFailed)
"""Errors of one intent that may not occur again: a runtime that starts many containers at boot answers late."""
_TRIES = 5
"""How often one agent tries to replay an intent whose error may pass."""

_DECIDED_AGAIN = (Result.STEPPED_DOWN, Result.NOT_ALIKE, Result.TRIGGER_ENDED)
"""Results after which the fault may last, with nothing that restarts the program."""

_FAILED = (Result.FAILED, Result.STUCK, Result.UNDONE, Result.SUCCESSOR_EXITED, *_DECIDED_AGAIN)
"""Results that close a restart although its program was not replaced: only a report shows that."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """An intent that was resumed, and its outcome. ``stale``: it was undone, because it was too old."""

    intent: intents.AnyIntent
    execution: AnyExecution
    outcome: Outcome
    stale: bool

    @property
    def steps_down(self) -> bool:
        """Return whether another restart must take over. A person can ask again, as after a restart that failed."""
        by_person = self.intent.reason == REQUESTED
        return self.outcome.result in _DECIDED_AGAIN and not (self.stale or by_person)


class Replay:
    """Replays intents, each by itself. ``given_up`` are those of which this agent can replay no more."""

    def __init__(
        self, *, dependencies: Dependencies, store: Store, now: Callable[[], float], timeouts: verifier.Timeouts
    ) -> None:
        self._dependencies = dependencies
        self._store = store
        self._now = now
        self._verifier = verifier.RestartVerifier(dependencies=dependencies, timeouts=timeouts)
        self._failed: set[str] = set()
        self.given_up: set[str] = set()

    async def resume(
        self, intent: intents.AnyIntent, *, share: ConfigShare, left: list[tuple[intents.AnyIntent, int]]
    ) -> Resumed | None:
        """Replay one intent; return None if that failed with an error that concerns it, or if it is ``left``, for room.

        ``left`` then has the bytes that it needs. A runtime's error that may pass leaves the intent to the background.

        Each try is recorded beforehand, so that one that ends this process counts, too. After the last try the intent
        is quarantined; each agent counts one. Raises CriError or JournalError if the error concerns every intent.
        """
        if not await self._store.replay_begins(intent.id):
            contained.given_up(Part.REPLAY)
            await self._quarantine(intent, reason="agents died repeatedly while they replayed it")
            return None
        try:
            with contained.within(Part.REPLAY, intent.target, passing=(*TRY_LATER, NoRoomError)) as work:
                resumed = await self._replay_patiently(intent, share=share)
        except NoRoomError as short:
            share.give_back()
            await self._store.replay_ended(intent.id, failed=False)
            left.append((intent, short.needed))
            return None
        except TRY_LATER:
            await self._store.replay_ended(intent.id, failed=False)
            raise
        if work.error is None:
            await self._store.replay_ended(intent.id, failed=False)
            return resumed
        reason = str(work.error) if isinstance(work.error, CriError) else contained.describe(work.error)
        outcome = await execution_of(self._dependencies, planning.bare(intent)).undo(reason=reason)
        may_pass = isinstance(work.error, _MAY_PASS)
        if outcome.result is not Result.UNFINISHED:
            await self._close(intent, outcome)
        elif await self._store.replay_ended(intent.id, failed=intent.id not in self._failed):
            await self._quarantine(intent, reason=reason)
        elif may_pass:  # nothing is known of the container, which may be frozen
            log.warning("restart.replay_waits", pod=intent.target.pod.uid, error=reason)
        self._failed.add(intent.id)
        if not may_pass:
            self.given_up.add(intent.id)
        return None

    async def _quarantine(self, intent: intents.AnyIntent, *, reason: str) -> None:
        """Keep an intent for inspection, and replay it no more. Other restarts are not affected."""
        await self._store.quarantine(intent.id, reason=reason, now=self._now())
        log.error("restart.quarantined", restart=intent.id, container=str(intent.target), reason=reason)
        self._report_failure(intent, f"quarantined in the journal because its replay fails: {reason}")

    async def quarantine_unreadable(self, entry: UnreadableIntent) -> None:
        """Keep an intent that cannot be parsed, as one whose replay has failed too often."""
        contained.given_up(Part.REPLAY)
        await self._store.quarantine(entry.id, reason=entry.reason, now=self._now())
        target = entry.target
        log.error("restart.quarantined", restart=entry.id, container=str(target or ""), reason=entry.reason)
        if target is not None:
            cause = admission.Cause("Unknown", "an unknown cause", happened_at=self._now())
            self._report(target, cause, f"quarantined in the journal: {entry.reason}", reason=Reason.INTERNAL)

    async def _close(self, intent: intents.AnyIntent, outcome: Outcome) -> None:
        log.error("restart.replay_failed", restart=intent.id, container=str(intent.target), detail=outcome.detail)
        await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())
        self._report_failure(intent, outcome.detail)

    def report(self, resumed: Resumed, *, checks: Sequence[Check] = ()) -> None:
        """Publish the outcome on the pod.

        Kubelet and the API server are given less time than after a restart of this agent, and may show old states when
        an agent starts: a check that fails proves nothing.
        """
        intent, plan = resumed.intent, resumed.execution.plan
        with contained.within(Part.REPLAY, intent.target):
            condition = pod_conditions.for_restart(
                container=intent.target.name,
                strategy=plan.strategy,
                restart_count=plan.restart_count,
                cause=admission.Cause(intent.reason, intent.reason, happened_at=intent.created_at),
                outcome=resumed.outcome,
                checks=[
                    replace(each, state=CheckState.UNKNOWN) for each in checks if each.state is not CheckState.PASSED
                ],
                settled=True,
            )
            self._publish(intent.target, condition)

    def _report_failure(self, intent: intents.AnyIntent, detail: str, *, reason: Reason = Reason.INTERNAL) -> None:
        cause = admission.Cause(intent.reason, intent.reason, happened_at=intent.created_at)
        self._report(intent.target, cause, detail, reason=reason)

    def _report(self, target: ContainerRef, cause: admission.Cause, detail: str, *, reason: Reason) -> None:
        with contained.within(Part.REPLAY, target):
            refusal = admission.Decision(admission.Verb.REFUSE, reason, detail)
            self._publish(target, pod_conditions.for_refusal(container=target.name, cause=cause, decision=refusal))

    def _publish(self, target: ContainerRef, condition: Condition) -> None:
        self._dependencies.reporter.set(target.pod, condition)
        self._dependencies.event_recorder.record(event_messages.of_restart(target, condition, now=self._now()))

    async def _replay_patiently(self, intent: intents.AnyIntent, *, share: ConfigShare) -> Resumed:
        """Replay one intent, and try again after an error that may pass. Raises the error of the last try."""
        backoff = aio.Backoff(first=0.5, limit=4.0)
        for _ in range(_TRIES - 1):
            try:
                return await self._replay(intent, share=share)
            except _MAY_PASS as error:
                log.warning(
                    "restart.replay_repeated", restart=intent.id, container=str(intent.target), error=str(error)
                )
                await backoff.wait()
        return await self._replay(intent, share=share)

    async def _replay(self, intent: intents.AnyIntent, *, share: ConfigShare) -> Resumed:
        stale = abs(self._now() - intent.created_at) > STALE_AFTER  # in the future: the clock was set back
        resumed = execution_of(self._dependencies, await planning.resume(self._dependencies, intent, admit=share.admit))
        outcome, proofs = await self._undone(resumed) if stale else await self._finished(resumed)
        if outcome.result in verifier.OLD_RUNS_ON:
            outcome = await self._verifier.adopted_copy(resumed.plan) or outcome
        restart_proof.log_resumed(resumed.plan, outcome, proofs, stale=stale)
        return Resumed(intent, resumed, outcome, stale)

    async def _undone(self, resumed: AnyExecution) -> tuple[Outcome, Mapping[str, str]]:
        outcome = await resumed.carry_out(resolution=steps.Resolution.UNDO)
        if outcome.result is Result.UNDONE and not outcome.detail:
            outcome = replace(outcome, detail="not finished by the agent that began it, more than a minute ago")
        return outcome, {}

    async def _finished(self, resumed: AnyExecution) -> tuple[Outcome, Mapping[str, str]]:
        """Finish a restart behind its gates and a proof; return also each GPU's result, or why there is none."""
        found = await restart_proof.of_resumed(self._dependencies, resumed.plan)
        gates, devices = self._dependencies.actuators.tools.gates, found.devices or frozenset()
        async with gates.around(resumed.plan.entries, devices=devices, proof=found.proof, judge=found.judge) as visit:
            await visit.remembered()
            return await resumed.carry_out(), found.by_device(visit.proving)

    async def _verified(self, resumed: Resumed) -> tuple[Outcome, Sequence[Check]]:
        (outcome, settled), answer = await asyncio.gather(
            self._verifier.wait_for_kubelet(resumed.execution, resumed.outcome), self._devices_answer(resumed)
        )
        checks = (answer, *settled)
        log.info(
            "restart.verified",
            restart=resumed.intent.id,
            container=str(resumed.intent.target),
            result=outcome.result.value,
            checks={check.name: check.state.value for check in checks},
        )
        return outcome, checks

    async def _devices_answer(self, resumed: Resumed) -> Check:
        devices = await restart_proof.resumed_devices(self._dependencies, resumed.execution.plan)
        return await self._verifier.devices_answer(devices)

    async def conclude(self, resumed: Resumed) -> None:
        """Verify it, publish how it ended, and close its intent. One that stays unfinished is replayed again."""
        outcome = resumed.outcome
        if outcome.result is Result.DEVICE_NOT_USABLE:
            self._report_failure(resumed.intent, outcome.detail, reason=Reason.DEVICE_NOT_USABLE)
        elif outcome.result in _FAILED:
            self.report(resumed)
        if outcome.result is Result.RESTARTED:
            for container in outcome.current.values():
                self._dependencies.heartbeats.restarted(container)
        if outcome.result.restarted:
            with contained.within(Part.VERIFICATION, resumed.intent.target, passing=TRY_LATER):
                outcome, checks = await self._verified(resumed)
                self.report(replace(resumed, outcome=outcome), checks=checks)
        await resumed.execution.give_back()
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(resumed.intent.id, outcome=outcome.result.value, now=self._now())
