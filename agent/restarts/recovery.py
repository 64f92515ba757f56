"""Resume the restarts that a previous agent left open, each pod's by itself. Only that pod's new restarts wait for it.

A program may take all of its grace period to end, up to an hour, and one that is stuck in the kernel never ends.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError, Store, UnreadableIntent
from kubemend.agent.devices import event_messages, pod_conditions
from kubemend.agent.model import outcomes
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerRef, PodUid
from kubemend.agent.restart import admission, intents, steps, swap
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import config_shares, planning, restart_proof, verifier
from kubemend.agent.restarts.config_shares import ConfigShare, NoRoomError
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.manual_requests import CODE as REQUESTED
from kubemend.agent.restarts.plan_execution import STALE_AFTER, AnyExecution, execution_of
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

_TIMEOUTS = verifier.Timeouts(kubelet=5.0, pod=5.0)
"""Shorter than after a restart of this agent, because nothing new starts during the replay."""

_API_TIMEOUT = 5.0
"""Seconds to wait for the API server's list of this node's pods before an orphan is taken for one of them."""


_TRY_LATER = (cri_errors.RuntimeUnavailable, cri_errors.PermissionDenied, cri_errors.NotCri, JournalError)
"""Errors that concern every intent: the runtime or the disk cannot be used now. Others are about one intent."""

_MAY_PASS = (cri_errors.DeadlineExceeded, cri_errors.ContainerBusy, cri_errors.NotFound, cri_errors.CallFailed)
"""Errors of one intent that may not occur again: a runtime that starts many containers at boot answers late."""
_TRIES = 5
"""How often one agent tries to replay an intent whose error may pass."""

_FAILED = (Result.FAILED, Result.STUCK, Result.STEPPED_DOWN, Result.NOT_ALIKE)
"""Results that close a restart although its program was not replaced: only a report shows that."""


@dataclass(frozen=True, slots=True)
class _Resumed:
    """An intent that was resumed, and its outcome. ``stale``: it was undone, because it was too old."""

    intent: intents.AnyIntent
    execution: AnyExecution
    outcome: Outcome
    stale: bool

    @property
    def steps_down(self) -> bool:
        """Return whether another strategy must take over. A person can ask again, as after a restart that failed."""
        by_person = self.intent.reason == REQUESTED
        return self.outcome.result in (Result.STEPPED_DOWN, Result.NOT_ALIKE) and not (self.stale or by_person)


@dataclass(frozen=True, slots=True)
class Background:
    """The services of replays in the background: tasks, and the scheduler, whose restarts of the same pods wait.

    ``patience``: seconds for replays without a grace period before other restarts begin. Most end within that time:
    then what they have restarted is seen as such, and the events of its old containers are no new faults.
    """

    tasks: asyncio.TaskGroup
    restarts: RestartScheduler
    patience: float = 2.0


_Share = Callable[[intents.AnyIntent], ConfigShare]


class Recovery:
    """Replay the journal. Run it before any new restart."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        store: Store,
        now: Callable[[], float],
        timeouts: verifier.Timeouts = _TIMEOUTS,
        spared: Collection[PodUid] = (),
        background: Background | None = None,
    ) -> None:
        """``spared``: pods that a round holds. The round finishes their restarts.

        ``background`` None: all intents are replayed in ``run``, and what stays unfinished is left to the next agent.
        """
        self._dependencies = dependencies
        self._store = store
        self._now = now
        self._spared = frozenset(spared)
        self._background = background
        self._in_background: set[PodUid] = set()
        self._verifier = verifier.RestartVerifier(dependencies=dependencies, timeouts=timeouts)
        self._failed: set[str] = set()
        self._given_up: set[str] = set()
        self._handed_over: set[str] = set()
        self._replayed = asyncio.Event()
        self._configs = config_shares.room()

    async def run(self) -> int:
        """Finish or undo every open intent; return how many there were, with those of the background.

        A successor in CREATED next to a running container is dangerous, because kubelet would start a third. Such
        intents come first. Kubelet may still act, up to 1 s later, on what it saw while no agent ran. As after any
        restart, the replay therefore waits until kubelet agrees, and resolves a duplicate that kubelet starts. Raises
        CriError or JournalError: try again, and start nothing new before that. Pods whose intents are still replayed in
        the background are locked when it returns.
        """
        for entry in await self._store.unreadable():
            await self._quarantine_unreadable(entry)
        opened = await self._store.unfinished()
        not_mine = self._spared | self._in_background
        unfinished = [
            each for each in opened if each.target.pod.uid not in not_mine and each.id not in self._handed_over
        ]
        views = await self._dependencies.runtime.list_containers()
        owned = frozenset(intent.id for intent in opened) | await self._store.quarantined()
        lost = await self._mine(swap.orphans(views, owned=owned, now=self._now()))
        for orphan in lost:
            with contained.within(Part.REPLAY, orphan.target, passing=_TRY_LATER):
                await self._undo_orphan(orphan)
        if self._background is not None:
            await self._replay_by_pod(unfinished, background=self._background)
        else:
            await self._replay_all(unfinished, share=lambda _: ConfigShare(self._configs, "", waits=True))
        self._replayed.set()
        return len(unfinished) + len(lost)

    async def _left_open(self, pod: PodUid) -> list[intents.AnyIntent]:
        """Return the intents of a pod that this agent must still replay: not those of which it cannot any more."""
        done = self._given_up | self._handed_over
        return [each for each in await self._store.unfinished() if each.target.pod.uid == pod and each.id not in done]

    async def _replay_by_pod(self, unfinished: Sequence[intents.AnyIntent], *, background: Background) -> None:
        """Start to replay the intents of each pod, and wait for the replays that may end soon."""
        soon = []
        for pod, mine in _by_pod(sorted(unfinished, key=lambda item: not _is_dangerous(item))).items():
            replay = await self._replay_in_background(pod, background=background)
            if all(intent.grace_seconds <= 0 for intent in mine):
                soon.append(replay)
        if soon:
            await asyncio.wait(soon, timeout=background.patience)

    async def _replay_all(self, unfinished: Sequence[intents.AnyIntent], *, share: _Share) -> None:
        dangerous_first = sorted(unfinished, key=lambda item: not _is_dangerous(item))
        # A device that is slow to be freed, a proof, and a launcher must not delay the others.
        left: list[tuple[intents.AnyIntent, int]] = []
        with contextlib.ExitStack() as shares:
            replays = [(each, shares.enter_context(share(each))) for each in dangerous_first]
            resumed = await asyncio.gather(
                *(self._resume(each, share=held, left=left) for each, held in replays), return_exceptions=True
            )
            done = [each for each in resumed if isinstance(each, _Resumed)]
            await aio.side_by_side(*(self._conclude(*parts) for parts in _by_restart(done)))
            del done
        failures = [each for each in resumed if isinstance(each, BaseException)]
        del resumed
        for intent, needed in left:  # their configs together would fill this process's memory
            await self._replay_alone(intent, needed, share=share(intent))
        for failure in failures:
            raise failure

    async def _replay_alone(self, intent: intents.AnyIntent, needed: int, *, share: ConfigShare) -> None:
        """Replay an intent once there is room for its configs: ``needed`` bytes, and those that it asks for then."""
        left = [(intent, needed)]
        while left:
            _, needed = left.pop()
            await share.wait(needed)
            with share:
                if (resumed := await self._resume(intent, share=share, left=left)) is not None:
                    await self._conclude(resumed)

    async def _replay_in_background(self, pod: PodUid, *, background: Background) -> asyncio.Task[None]:
        """Start to replay the intents of a pod; return the task once the pod is locked."""
        self._in_background.add(pod)
        locked = asyncio.Event()
        replay = self._replay_pod(pod, locked=locked, restarts=background.restarts)
        task = background.tasks.create_task(replay, name=f"replay {pod}")
        await locked.wait()
        return task

    async def _replay_pod(self, pod: PodUid, *, locked: asyncio.Event, restarts: RestartScheduler) -> None:
        async with restarts.turn(pod):
            locked.set()
            with contained.within(Part.REPLAY, pod):
                await self._replay_until_done(pod, restarts=restarts)

    async def _replay_until_done(self, pod: PodUid, *, restarts: RestartScheduler) -> None:
        backoff = aio.Backoff(first=0.1, limit=5.0)
        while True:
            try:
                mine = await self._left_open(pod)
                await self._replay_all(mine, share=lambda each: restarts.config_share(each.target.pod, waits=True))
                if not await self._left_open(pod):
                    return
                log.warning("restart.replay_waits", pod=pod, error="the runtime has not finished it")
            except _TRY_LATER as error:
                log.warning("restart.replay_waits", pod=pod, error=str(error))
            await backoff.wait()

    async def _undo_orphan(self, orphan: intents.Intent) -> None:
        outcome = await execution_of(self._dependencies, planning.bare(orphan)).carry_out(
            resolution=steps.Resolution.UNDO
        )
        log.warning("restart.orphan", restart=orphan.id, container=str(orphan.target), result=outcome.result.value)

    async def _mine(self, lost: Sequence[intents.Intent]) -> Sequence[intents.Intent]:
        """Drop orphans that belong to no pod of this node, if the API server lists the pods in time.

        Simulated nodes share a runtime, so an apparent orphan may be another node's restart in progress. Kubelet ends a
        pod that the API server no longer has.
        """
        if lost and not self._dependencies.pods.synced:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_API_TIMEOUT):
                    await self._dependencies.pods.until_synced()
        if not self._dependencies.pods.synced:
            return lost
        return [orphan for orphan in lost if orphan.target.pod.uid in self._dependencies.pods.pods()]

    async def _resume(
        self, intent: intents.AnyIntent, *, share: ConfigShare, left: list[tuple[intents.AnyIntent, int]]
    ) -> _Resumed | None:
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
            with contained.within(Part.REPLAY, intent.target, passing=(*_TRY_LATER, NoRoomError)) as work:
                resumed = await self._replay_patiently(intent, share=share)
        except NoRoomError as short:
            share.give_back()
            await self._store.replay_ended(intent.id, failed=False)
            left.append((intent, short.needed))
            return None
        except _TRY_LATER:
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
            self._given_up.add(intent.id)
        return None

    async def _quarantine(self, intent: intents.AnyIntent, *, reason: str) -> None:
        """Keep an intent for inspection, and replay it no more. Other restarts are not affected."""
        await self._store.quarantine(intent.id, reason=reason, now=self._now())
        log.error("restart.quarantined", restart=intent.id, container=str(intent.target), reason=reason)
        self._report_failure(intent, f"quarantined in the journal because its replay fails: {reason}")

    async def _quarantine_unreadable(self, entry: UnreadableIntent) -> None:
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

    def _report_outcome(self, resumed: _Resumed) -> None:
        intent, plan = resumed.intent, resumed.execution.plan
        with contained.within(Part.REPLAY, intent.target):
            condition = pod_conditions.for_restart(
                container=intent.target.name,
                strategy=plan.strategy,
                restart_count=plan.restart_count,
                cause=admission.Cause(intent.reason, intent.reason, happened_at=intent.created_at),
                outcome=resumed.outcome,
                checks=(),
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

    async def _replay_patiently(self, intent: intents.AnyIntent, *, share: ConfigShare) -> _Resumed:
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

    async def _replay(self, intent: intents.AnyIntent, *, share: ConfigShare) -> _Resumed:
        stale = abs(self._now() - intent.created_at) > STALE_AFTER  # in the future: the clock was set back
        resumed = execution_of(self._dependencies, await planning.resume(self._dependencies, intent, admit=share.admit))
        outcome, proofs = await self._undone(resumed) if stale else await self._finished(resumed)
        if outcome.result in verifier.OLD_RUNS_ON:
            outcome = await self._verifier.adopted_copy(resumed.plan) or outcome
        restart_proof.log_resumed(resumed.plan, outcome, proofs, stale=stale)
        return _Resumed(intent, resumed, outcome, stale)

    async def _undone(self, resumed: AnyExecution) -> tuple[Outcome, Mapping[str, str]]:
        return await resumed.carry_out(resolution=steps.Resolution.UNDO), {}

    async def _finished(self, resumed: AnyExecution) -> tuple[Outcome, Mapping[str, str]]:
        """Finish a restart behind its gates and a proof; return also each GPU's result, or why there is none."""
        found = await restart_proof.of_resumed(self._dependencies, resumed.plan)
        gates, devices = self._dependencies.actuators.tools.gates, found.devices or frozenset()
        async with gates.around(resumed.plan.entries, devices=devices, proof=found.proof, judge=found.judge) as visit:
            await visit.remembered()
            return await resumed.carry_out(), found.by_device(visit.proving)

    async def _verified(self, resumed: _Resumed) -> Outcome:
        outcome, checks = await self._verifier.wait_for_kubelet(resumed.execution, resumed.outcome)
        log.info(
            "restart.verified",
            restart=resumed.intent.id,
            container=str(resumed.intent.target),
            result=outcome.result.value,
            checks={check.name: check.state.value for check in checks},
        )
        return outcome

    async def _conclude(self, *parts: _Resumed) -> None:
        """Conclude a restart of one container or of several, or hand it over: then no container was changed."""
        if self._background is not None and all(each.steps_down for each in parts):
            for each in parts:
                await each.execution.give_back()
            self._hand_over(parts, background=self._background)
            return
        await aio.side_by_side(*(self._conclude_one(each) for each in parts))

    async def _conclude_one(self, resumed: _Resumed) -> None:
        """Verify it and close its intent. One that stays unfinished is replayed again."""
        outcome = resumed.outcome
        if outcome.result is Result.DEVICE_NOT_USABLE:
            self._report_failure(resumed.intent, outcome.detail, reason=Reason.DEVICE_NOT_USABLE)
        elif outcome.result in _FAILED:
            self._report_outcome(resumed)
        if outcome.result is Result.RESTARTED:
            for container in outcome.current.values():
                self._dependencies.heartbeats.restarted(container)
        if outcome.result.restarted:
            with contained.within(Part.VERIFICATION, resumed.intent.target, passing=_TRY_LATER):
                outcome = await self._verified(resumed)
        await resumed.execution.give_back()
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(resumed.intent.id, outcome=outcome.result.value, now=self._now())

    def _hand_over(self, parts: Sequence[_Resumed], *, background: Background) -> None:
        """Have another strategy take over when the journal is replayed. Until that has begun the intents stay open."""
        self._handed_over.update(each.intent.id for each in parts)
        taking_over = self._taken_over(parts, restarts=background.restarts)
        background.tasks.create_task(taking_over, name=f"take over {parts[0].intent.id}")

    async def _taken_over(self, parts: Sequence[_Resumed], *, restarts: RestartScheduler) -> None:
        first = parts[0].intent
        await self._replayed.wait()
        with contained.within(Part.REPLAY, first.target):
            plan = planning.together(each.execution.plan for each in parts)
            outcome = outcomes.together(each.outcome for each in parts)
            if not await restarts.take_over(plan, outcome, reason=first.reason):
                for each in parts:
                    self._report_outcome(each)
            for intent in plan.entries:
                await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())


def _by_pod(unfinished: Iterable[intents.AnyIntent]) -> Mapping[PodUid, Sequence[intents.AnyIntent]]:
    found: dict[PodUid, list[intents.AnyIntent]] = {}
    for intent in unfinished:
        found.setdefault(intent.target.pod.uid, []).append(intent)
    return found


def _by_restart(done: Sequence[_Resumed]) -> Iterable[Sequence[_Resumed]]:
    """Return the intents of each restart together: a swap of several containers of a pod has one for each."""
    found: dict[object, list[_Resumed]] = {}
    for each in done:
        intent = each.intent
        is_swap = isinstance(intent, intents.Intent)
        key = (intent.target.pod.uid, intent.created_at, intent.reason) if is_swap else intent.id
        found.setdefault(key, []).append(each)
    return found.values()


def _is_dangerous(intent: intents.AnyIntent) -> bool:
    return isinstance(intent, intents.Intent) and intent.order.may_wait
