"""From an act to its end: journal it, carry it out, verify, report, close."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import structlog

from agent.actuator import progress, turns
from agent.actuator.gates import Visit
from agent.actuator.outcomes import Outcome, Result
from agent.engine import aftermath, announcements, conditions, ports
from agent.engine.acts import Act
from agent.engine.budgets import Counted
from agent.engine.metrics import Metrics
from agent.engine.newcomers import Newcomers
from agent.engine.recovery import STALE_AFTER, taken_back
from agent.engine.suspects import Suspects
from agent.history.store import HistoryError, Store
from agent.model import rounds
from agent.model.devices import GpuUuid
from agent.model.findings import FindingKind
from agent.model.workloads import PodUid
from agent.restart import admission, steps, verification
from agent.restart.gates import Verdict
from common import contained
from common.contained import Part as Kind

log = structlog.get_logger(__name__)


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class _Done:
    """A restart that was acted on. ``in_round``: its round has told already that it runs."""

    act: Act
    cause: admission.Cause
    outcome: Outcome
    in_round: bool = False


@dataclass(frozen=True, slots=True)
class _Verified:
    """What became of a restart, and what kubelet and the devices say."""

    outcome: Outcome
    settled: Sequence[verification.Check]
    answer: verification.Check
    free: verification.Check


class Part(Protocol):
    """A member's part in a gang's round, as its restart sees it (``agent.engine.members.Member``)."""

    def take_on(self, act: Act, *, pid: int | None) -> Act:
        """Return the act as it is carried out in the round: what it starts is held. ``pid`` is of what is to end."""

    def record(self) -> rounds.Record:
        """Return what is to be written down with it."""

    async def hold(self, act: Act, outcome: Outcome) -> Outcome:
        """Hold what was started until the round lets it go; return what is there then."""


class Performer:
    """Performs acts, many side by side. ``quiet`` is set while none is being carried out."""

    def __init__(
        self,
        *,
        outside: ports.Outside,
        store: Store,
        metrics: Metrics,
        now: Callable[[], float],
        held: float,
        suspects: Suspects | None = None,
        newcomers: Newcomers | None = None,
    ) -> None:
        self._outside = outside
        self._aftermath = aftermath.Aftermath(outside=outside)
        self._store = store
        self._metrics = metrics
        self._now = now
        self._held = held
        self._suspects = suspects
        self._newcomers = newcomers
        self._hurried: dict[PodUid, asyncio.Event] = {}
        self._in_a_hurry: Counter[PodUid] = Counter()
        self._acting = 0
        self.quiet = asyncio.Event()
        self.quiet.set()

    async def perform(
        self,
        act: Act,
        *,
        cause: admission.Cause,
        counted: Counted,
        devices: frozenset[GpuUuid] | None,
        announce: Callable[[], None],
        part: Part | None = None,
    ) -> None:
        """See an act through to its verified end. Raises HistoryError before anything is done.

        It goes into the journal as ``counted``; ``announce`` is called once it is there. ``devices`` must be free of
        the old processes before anything new is started, and answer afterwards. ``part`` is set when it is a round's.
        """
        gates = self._outside.actuators.gates
        async with gates.around(act.entries, devices=devices or frozenset()) as visit:
            record = part.record() if part is not None else None
            await self._store.begin(*act.entries, counted=counted.restart, record=record)
            counted.has_begun()
            announce()
            containers = sorted(act.names)
            act.followed.tell(progress.Begun(self._now(), act.id, act.strategy, containers, act.restart_count))
            with self._act_noted():
                outcome = await self._to_the_end(act, remembered=visit.remembered)
            done = _Done(act=act, cause=cause, outcome=outcome, in_round=part is not None)
            await self._see_off(done, part=part, devices=devices, visit=visit)

    async def take_up(self, act: Act, *, cause: admission.Cause, part: Part) -> None:
        """See an act through that an earlier agent has begun for a round. It is in the journal already."""
        async with self._outside.actuators.gates.around(act.entries, devices=frozenset()) as visit:
            with self._act_noted():
                outcome = await self._to_the_end(act)
            await self._see_off(_Done(act, cause, outcome, in_round=True), part=part, devices=None, visit=visit)

    @contextlib.contextmanager
    def hurried(self, pod: PodUid) -> Iterator[None]:
        """Have the verification of a pod's restart cut short, while in this block one is waited for."""
        self._in_a_hurry[pod] += 1
        self._hurried.setdefault(pod, asyncio.Event()).set()
        try:
            yield
        finally:
            self._in_a_hurry[pod] -= 1
            if not self._in_a_hurry[pod]:
                del self._in_a_hurry[pod]
                self._hurried.pop(pod, None)

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

    async def _see_off(
        self, done: _Done, *, part: Part | None, devices: frozenset[GpuUuid] | None, visit: Visit
    ) -> None:
        """Hold it as long as its round wants, and conclude it. Its intents are closed whatever we come upon."""
        try:
            if part is not None:
                done = replace(done, outcome=await part.hold(done.act, done.outcome))
            await self._conclude(done, devices=devices, visit=visit)
        except Exception:
            if done.outcome.result is not Result.UNFINISHED:
                await self._close(done)
            raise

    async def _to_the_end(self, act: Act, *, remembered: Callable[[], Awaitable[None]] = _nothing) -> Outcome:
        """Carry it out, once what is to be remembered is; where we come upon a defect of ours, take it back."""
        with contained.within(Kind.RESTART, act.target) as work:
            await remembered()
            return await self._carried_out(act)
        assert work.error is not None
        return await taken_back(act, why=contained.why(work.error))

    async def _carried_out(self, act: Act) -> Outcome:
        """Carry it out, again while the runtime stays away; what has grown stale is taken back where that is safe."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        outcome = await act.carry_out()
        while outcome.result is Result.UNFINISHED and clock() - begun < self._held:
            log.warning("restart.unfinished", restart=act.id, detail=outcome.detail)
            stale = clock() - begun > STALE_AFTER
            outcome = await act.again().carry_out(
                resolution=steps.Resolution.UNDO if stale else steps.Resolution.FINISH
            )
        return outcome

    async def _conclude(self, done: _Done, *, devices: frozenset[GpuUuid] | None, visit: Visit) -> None:
        """Report at once, verify, wait for kubelet's consent, report again, and close the intents.

        Of a round's members, which are many, the first report is left out. An unfinished intent stays open in the
        journal: the agent's next start takes it up.
        """
        self._count(done)
        if not (done.in_round and done.outcome.result.restarted):
            self._report(done, checks=(), settled=not done.outcome.result.restarted)
        if done.outcome.result is Result.STUCK:
            self._suspect(done, visit=visit)
        if done.outcome.result.restarted:
            begun = asyncio.get_running_loop().time()
            self._expect(done, devices=devices, visit=visit)
            verified = None
            with contained.within(Kind.VERIFICATION, done.act.target):
                async with turns.waiting():
                    verified = await self._verified_unless_hurried(done, devices=devices, visit=visit)
            if verified is None:
                log.info("restart.not_verified", restart=done.act.id, container=str(done.act.target))
                if done.in_round:
                    self._report(done, checks=(), settled=False)
                await self._close(done)
                return
            outcome, free = verified.outcome, verified.free
            if free.reason == Verdict.STUCK.value:
                self._suspect(done, visit=visit)
            if done.act.awaited(done.outcome):  # what kubelet had to do is a part of this restart
                kubelets = asyncio.get_running_loop().time() - begun
                outcome = replace(outcome, phases=MappingProxyType({**outcome.phases, "kubelet": kubelets}))
            done = replace(done, outcome=outcome)
            self._report(done, checks=(verified.answer, free, *verified.settled), settled=True)
        if done.outcome.result is not Result.UNFINISHED:
            await self._close(done)

    async def _verified_unless_hurried(
        self, done: _Done, *, devices: frozenset[GpuUuid] | None, visit: Visit
    ) -> _Verified | None:
        """Return what became of it by all who are asked; None when a round waits for the pod."""
        hurried = self._hurried.setdefault(done.act.target.pod.uid, asyncio.Event())
        verifying = asyncio.create_task(self._verify(done, devices=devices, visit=visit), name=f"verify {done.act.id}")
        waiting = asyncio.create_task(hurried.wait(), name=f"hurried {done.act.id}")
        try:
            await asyncio.wait({verifying, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return verifying.result() if verifying.done() else None
        finally:
            verifying.cancel()
            waiting.cancel()
            await asyncio.wait({verifying, waiting})
            if done.act.target.pod.uid not in self._in_a_hurry:
                self._hurried.pop(done.act.target.pod.uid, None)

    async def _verify(self, done: _Done, *, devices: frozenset[GpuUuid] | None, visit: Visit) -> _Verified:
        (outcome, settled), answer, free = await asyncio.gather(
            self._aftermath.settle(done.act, done.outcome),
            self._aftermath.devices_answer(devices),
            self._aftermath.devices_free(devices, visit=visit),
        )
        return _Verified(outcome, settled, answer, free)

    def _expect(self, done: _Done, *, devices: frozenset[GpuUuid] | None, visit: Visit) -> None:
        """Have it told when a new process is where the old ones were."""
        if self._newcomers is not None and done.outcome.result.restarted and visit.was_occupied:
            self._newcomers.expect(
                done.act.id,
                strategy=done.act.strategy,
                devices=devices or frozenset(),
                containers=done.outcome.survivors.values(),
            )

    def _suspect(self, done: _Done, *, visit: Visit) -> None:
        """A process that cannot be killed says something about its device, too."""
        if self._suspects is None:
            return
        for device, pids in visit.stuck().items():
            text = (
                f"pid {', '.join(map(str, sorted(pids)))} of {done.act.target} is on it and cannot be killed (state D)"
            )
            self._suspects.suspect(FindingKind.PROCESS_STUCK, device=device, text=text)

    async def _close(self, done: _Done) -> None:
        for intent in done.act.entries:
            try:
                await self._store.finish(intent.id, outcome=done.outcome.result.value, now=self._now())
            except HistoryError as error:
                log.error("restart.not_closed", restart=intent.id, error=str(error))  # a replay finds it done

    def _count(self, done: _Done) -> None:
        strategy = done.act.strategy.value
        self._metrics.restarts.labels(strategy, done.cause.code, done.outcome.result.value).inc()
        for phase, seconds in done.outcome.phases.items():
            self._metrics.restart_phase.labels(strategy, phase).observe(seconds)
        if done.outcome.result.restarted and not done.act.awaited(done.outcome):
            since_fault = self._now() - done.cause.happened_at
            self._metrics.restart_phase.labels(strategy, "fault_to_running").observe(since_fault)

    def _report(self, done: _Done, *, checks: Sequence[verification.Check], settled: bool) -> None:
        act, outcome = done.act, done.outcome
        act.followed.tell(progress.Reported(outcome, checks, settled))
        condition = conditions.for_restart(
            container=act.target.name,
            strategy=act.strategy,
            restart_count=act.restart_count,
            cause=done.cause,
            outcome=outcome,
            checks=checks,
            settled=settled,
        )
        self._outside.reporter.set(act.target.pod, condition)
        if settled:
            self._outside.announcements.tell(announcements.of_restart(act.target, condition, now=self._now()))
        log.info(
            "restart.finished" if settled else "restart.acted",
            restart=act.id,
            container=str(act.target),
            containers=sorted(act.names),
            strategy=act.strategy.value,
            cause=done.cause.code,
            result=outcome.result.value,
            detail=outcome.detail,
            notes=list(outcome.notes),
            milliseconds={name: round(seconds * 1000, 1) for name, seconds in outcome.phases.items()},
            checks={check.name: check.state.value for check in checks},
        )
