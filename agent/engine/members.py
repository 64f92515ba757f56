"""One member of a gang's round on this node: what the round says to it, what it holds, and where it stands."""

import asyncio
import contextlib
import enum
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from agent.actuator import progress
from agent.actuator.holding import Holding
from agent.actuator.outcomes import Outcome, Result
from agent.engine import acts, ports
from agent.engine.catching import Catcher, until_dead
from agent.engine.metrics import Metrics
from agent.model import rounds
from agent.model.rounds import Phase
from agent.model.workloads import ContainerId, ContainerRole, PodRef
from agent.restart import admission, probes

log = structlog.get_logger(__name__)

_LOOK_AGAIN = 1.0
"""Seconds after which what runs is looked at again although no event has come."""

TELL_EVERY = 3.0
"""Seconds after which it is told again that a member goes on, while it stops or starts: the controller gives up who is
silent for ``--stop-seconds``."""

_STARTED = 60.0
"""Seconds that kubelet has to start again what was let go."""


class Word(enum.Enum):
    """What ends a hold."""

    RELEASED = "released"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"
    SUPERSEDED = "superseded"
    DELETED = "the pod is being deleted"


_NEVER_RUN = (Word.SUPERSEDED, Word.DELETED)

INTERNAL = admission.Reason.INTERNAL.value

BEFORE_RELEASE = (Phase.STOPPING, Phase.STOPPED)

_LET_GO_AS = {
    Word.RELEASED: (Phase.RUNNING, ""),
    Word.ABORTED: (Phase.SELF_RELEASED, "Aborted"),
    Word.TIMED_OUT: (Phase.SELF_RELEASED, ""),
}
"""What a member that was let go is told as. RUNNING follows a release alone: the controller takes it for a proof that
everything old is dead."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """``now`` is Unix time, ``since_boot`` counts from the boot that ``boot`` names; both in seconds."""

    now: Callable[[], float]
    since_boot: Callable[[], float]
    boot: str


def _taken_on(order: rounds.Order, pod: PodRef) -> rounds.Standing:
    return rounds.Standing(order.round, pod, Phase.STOPPING, attempt=order.attempt)


def since_boot() -> float:
    """Return the seconds since this boot, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Member:
    """A member on its way through a round. It is also what its restart sees of the round (``performing.Part``).

    ``tried_again`` is set when its successor ended before it could be held (the runtime gives up a start when who asked
    for it dies): it is to be restarted once more. ``begins_anew`` is set when it has been held for as long as its
    probes allow: kubelet would kill what is let go after that.
    """

    def __init__(
        self,
        order: rounds.Order,
        *,
        pod: PodRef,
        outside: ports.Outside,
        holding: Holding,
        clocks: Clocks,
        noted: Callable[[rounds.Record], None],
        told: Callable[[rounds.Standing], None],
        metrics: Metrics,
        earlier: rounds.Record | None = None,
    ) -> None:
        """``noted`` is given each record, ``told`` each standing; ``earlier`` is what an earlier agent has written."""
        self.order = order
        self.pod = pod
        self.holding = holding
        self.told = told
        self.tried_again = False
        self.begins_anew = False
        self.standing = earlier.standing if earlier is not None else _taken_on(order, pod)
        self._outside = outside
        self._clocks = clocks
        self._noted = noted
        self._metrics = metrics
        self._heard_at = earlier.heard_at if earlier is not None else clocks.since_boot()
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._seconds: dict[str, float] = {}
        self._word: Word | None = None
        self._over = asyncio.Event()
        self._catcher = Catcher(pod, outside=outside, holding=holding, on_deleted=lambda: self.end(Word.DELETED))
        self._known: frozenset[ContainerId] = frozenset()
        self._runs: frozenset[ContainerId] = frozenset()
        self._held_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def word(self) -> Word | None:
        """The round's last word to it."""
        return self._word

    def record(self) -> rounds.Record:
        """Return what is to be written down of it; once it is let go that says how, for whoever has not heard it."""
        standing = self.standing
        if not self.holding.on and self._word in _LET_GO_AS and standing.phase in BEFORE_RELEASE:
            phase, reason = _LET_GO_AS[self._word]
            standing = replace(standing, phase=phase, reason=reason)
        return rounds.Record(
            order=self.order,
            pod=self.pod,
            standing=standing,
            boot=self._clocks.boot,
            heard_at=self._heard_at,
            written_at=self._clocks.now(),
            names=self.holding.names,
            released=not self.holding.on,
        )

    def hear(self, order: rounds.Order) -> None:
        """The round goes on: hold for as long again."""
        self.order = replace(self.order, hold_seconds=order.hold_seconds)
        self._heard_at = self._clocks.since_boot()
        self._wind_up()
        self._noted(self.record())

    def end(self, word: Word, *, reason: str = "") -> None:
        """Hold no more. What was stopped is brought up all the same; what has not been begun is not."""
        if self._word is not None:
            self._word = Word.SUPERSEDED if word is Word.SUPERSEDED else self._word
            return
        log.debug("round.word", round=self.order.round, pod=str(self.pod), word=word.value, reason=reason)
        self._word = word
        self.holding.is_to_let_go = word in _LET_GO_AS
        try:
            if not self._is_disputed:
                self._let_go()
        finally:
            self._over.set()
            self._catcher.changed.set()

    async def why_over(self) -> str:
        """Say why nothing is to be begun any more; empty while something is."""
        return f"the round is over for it: {self._word.value}" if self._word is not None else ""

    def stand(self, phase: Phase, *, reason: str = "", detail: str = "") -> None:
        """Note where it stands, and tell it; of one that was superseded nobody wants to know."""
        if self._word is Word.SUPERSEDED:
            return
        self.standing = rounds.Standing(
            round=self.order.round,
            pod=self.pod,
            phase=phase,
            reason=reason,
            detail=detail,
            seconds=MappingProxyType(dict(self._seconds)),
            slipped=self.holding.slipped,
            attempt=self.order.attempt,
        )
        if phase is not Phase.STOPPED:  # what was measured until then is told at the end, of which there is one each
            self._say()
        self._metrics.round_members.labels(phase.value).inc()
        self._noted(self.record())
        self.told(self.standing)

    async def _tell_that_it_goes_on(self) -> None:
        """Say again where it stands, with what it is at, until it has stopped, and from its release until it runs."""
        while True:
            await asyncio.sleep(TELL_EVERY)
            if self._word is Word.SUPERSEDED:
                return
            if self.standing.phase is Phase.STOPPING:
                self.told(replace(self.standing, reason=self.holding.doing))
            elif self.standing.phase is Phase.STOPPED and self._word is Word.RELEASED:
                self.told(replace(self.standing, reason="Starting"))

    def _say(self) -> None:
        standing = self.standing
        log.info(
            "round.standing",
            round=standing.round,
            pod=str(self.pod),
            phase=standing.phase.value,
            reason=standing.reason,
            detail=standing.detail,
            milliseconds={name: round(seconds * 1000, 1) for name, seconds in standing.seconds.items()},
            slipped_milliseconds=round(standing.slipped * 1000, 1),
            foreign=self.holding.foreign,
        )

    def refuse(self, decision: admission.Decision) -> None:
        """Say that nothing is done to it, and why; hold nothing."""
        self._let_go()
        was_let_go = self._word is Word.ABORTED or (self._word in _LET_GO_AS and self.standing.phase is Phase.STOPPED)
        if decision.reason is admission.Reason.ROUND_OVER and was_let_go and self._word is not None:
            phase, reason = _LET_GO_AS[self._word]
            self.stand(phase, reason=reason, detail=decision.detail)
            return
        phase = Phase.COMPLETED if decision.reason is admission.Reason.COMPLETED else Phase.REFUSED
        self.stand(phase, reason=decision.reason.value, detail=decision.detail)

    def tell(self, event: progress.Event) -> None:
        """Follow the restart (``progress.Progress``): a refusal is the member's."""
        if isinstance(event, progress.Decided) and event.decision.verb is admission.Verb.REFUSE:
            self.refuse(event.decision)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Follow the pod and the time for the length of the block. A cancelled one leaves everything as it is."""
        async with self._catcher.at_work():
            self._wind_up()
            telling = asyncio.create_task(self._tell_that_it_goes_on(), name=f"progress of {self.pod}")
            try:
                yield
                self._let_go()
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
                if self._timer is not None:
                    self._timer.cancel()

    def take_over(self, frozen: frozenset[ContainerId]) -> None:
        """Take over what was frozen for it before. Two of them may be of one name: then one goes, before any runs."""
        self.holding.adopt(frozen - self.holding.held)
        self._catcher.strangers.update(frozen)

    @property
    def ended(self) -> frozenset[ContainerId]:
        """Return what was ended on its way."""
        return self.holding.spared | (self.holding.ever_held - self._runs)

    def take_on(self, act: acts.Act, *, pid: int | None) -> acts.Act:
        """Return the act as it is carried out in the round: what it starts is held, what it ends is not."""
        self._seconds["prepare"] = self._loop.time() - self._since
        self.begins_anew = False
        self.holding.spare(act.old, near=pid)
        if isinstance(act, acts.PodAct):  # an init container or a sidecar that is held would hold up all after it
            plan = act.intent.plan
            self.holding.names = frozenset(each.name for each in plan if each.role is ContainerRole.MAIN)
        return replace(act, holding=self.holding)

    async def hold(self, act: acts.Act, outcome: Outcome) -> Outcome:
        """Hold what was started until the round lets it go; return what is there then."""
        self._seconds.update(outcome.phases)
        if outcome.result is Result.SUCCESSOR_EXITED and not self.tried_again and self._word is None:
            self.tried_again = True  # by whoever has begun this: it is still held
            return outcome
        if not outcome.result.restarted:
            phase = Phase.STUCK if outcome.result is Result.STUCK else Phase.FAILED
            self.stand(phase, reason=outcome.result.value, detail=outcome.detail)
            await self._over.wait()  # what kubelet starts meanwhile is held, too
            return outcome
        await self._hold_survivors(outcome)
        if not all(await asyncio.gather(*(self._catcher.end(container_id) for container_id in act.strays))):
            self.stand(Phase.STUCK, reason=Result.STUCK.value, detail="what a restart before has left cannot be killed")
            await self._over.wait()
            return outcome
        if outcome.result is Result.TRIGGERED:
            await self._catcher.until_ended(act.old, over=self._over)  # kubelet is at it
        if self.holding.failed:
            self.stand(Phase.FAILED, reason=admission.Reason.CANNOT_HOLD.value, detail=self.holding.failed)
            await self._over.wait()
            return outcome
        if self._word is None:
            self._stopped()
        outcome = await self._undisputed(act, outcome, until=self._loop.time() + self._longest_hold())
        if self._word is None:
            self.begins_anew = True
            return replace(
                outcome, result=Result.SUCCESSOR_EXITED, detail="held as long as its probes allow: begun anew"
            )
        if self._word is Word.DELETED:
            return replace(outcome, result=Result.FAILED, detail="the pod is being deleted")
        if self._word is Word.SUPERSEDED:
            return outcome
        expected = frozenset(outcome.survivors.values()) & self.holding.ever_held
        await self._until_it_runs(expected=expected if not act.awaited(outcome) else frozenset(), timeout=_STARTED)
        await act.released()
        return outcome

    async def hold_only(self) -> None:
        """Hold what runs and what starts until the round lets it go. Nothing is ended."""
        await self.hold_what_runs()
        while self.order.kind is rounds.OrderKind.HOLD and not self.holding.held and self._word is None:
            await self._catcher.until_changed()  # it has yet to begin
        await self.holding.settled()
        if self.holding.failed:
            self.stand(Phase.FAILED, reason=admission.Reason.CANNOT_HOLD.value, detail=self.holding.failed)
            await self._over.wait()
            return
        if self._word is None:
            self._stopped()
        await self._over.wait()
        self._let_go()
        await self._until_it_runs(expected=frozenset(), timeout=None)

    async def hold_what_runs(self) -> None:
        """Hold what has been started already, but for what is to end."""
        if self._word is None:
            await self._catcher.hold_what_runs(self._over)

    async def fail(self, why: str) -> None:
        """Tell that a defect of ours keeps it from going on. What stands still stays so until the round is over."""
        if self.standing.phase not in (Phase.FAILED, Phase.RUNNING, Phase.SELF_RELEASED, Phase.GONE):
            self.stand(Phase.FAILED, reason=INTERNAL, detail=why)
        await self._over.wait()

    def drop(self) -> None:
        """Let go whatever is held, though not even that could be told."""
        self._word = self._word if self._word is not None else Word.ABORTED
        self._let_go()

    def come_to_an_end(self) -> None:
        """Whatever has become of it, it is not on its way any more: nobody waits for ever for a word on it."""
        if self.standing.phase is Phase.STOPPING and self._word not in _NEVER_RUN:
            self.stand(Phase.FAILED, reason=Result.UNFINISHED.value, detail="its restart has ended without a result")

    def _stopped(self) -> None:
        self._held_since = self._loop.time()
        for phase, seconds in self._seconds.items():
            self._metrics.round_phase.labels(phase).observe(seconds)
        self._metrics.round_slip.observe(self.holding.slipped)
        self.stand(Phase.STOPPED)

    async def until_gone(self) -> None:
        """Of a pod that is being deleted: wait until it has gone, as long as anybody wants to know."""
        pods = self._outside.pods
        while self.pod.uid in pods.pods():
            await pods.wait_for(self.pod.uid, lambda _: False, timeout=_LOOK_AGAIN)
        await until_dead(self.pod.uid, events=self._outside.events)
        self.stand(Phase.GONE)

    @property
    def _is_disputed(self) -> bool:
        """Whether somebody else's container may stand beside one of ours of the same name.

        Before ours is let run, what kubelet has made and not yet started counts, too: it would start it beside ours.
        """
        others = self._catcher.strangers
        if self._word is not None:
            others = others | self._catcher.created
        return not others - self.holding.spared <= self._known

    async def _hold_survivors(self, outcome: Outcome) -> None:
        """See that all stands still: what kubelet has started and we have adopted, too, though its event be late."""
        mine = (container_id for name, container_id in outcome.survivors.items() if self.holding.takes(name))
        await asyncio.gather(*(self.holding.hold(container_id) for container_id in mine))
        await self.holding.settled()

    def _longest_hold(self) -> float:
        """Return after how many seconds what is held is to be begun anew, for its probes (``agent.restart.probes``)."""
        pod = self._outside.pods.pods().get(self.pod.uid)
        return probes.longest_hold(spec for spec in (pod.containers if pod else ()) if spec.name in self.holding.names)

    async def _undisputed(self, act: acts.Act, outcome: Outcome, *, until: float) -> Outcome:
        """Wait for the last word, until then (loop time); of two of one name one goes, while both stand still."""
        while True:
            self._known = frozenset(outcome.survivors.values())
            if self._is_disputed:
                await self.holding.settled()
                before = frozenset(self._catcher.strangers | self._catcher.created)
                outcome = await act.resolve(outcome)
                await self._hold_survivors(outcome)
                self._catcher.strangers -= before
                self._catcher.created -= before
                continue
            if self._word is not None:
                self._let_go()
                return outcome
            left = until - self._loop.time()
            if left <= 0:
                return outcome
            await self._catcher.until_changed(timeout=None if math.isinf(left) else left)

    async def _until_it_runs(self, *, expected: frozenset[ContainerId], timeout: float | None) -> None:
        """Tell that it runs, as soon as it does: what was held at once, what kubelet has yet to start when it has."""
        if self._word in _NEVER_RUN:
            return
        if self._held_since is not None:
            self._seconds["held"] = self._loop.time() - self._held_since
            self._metrics.round_phase.labels("held").observe(self._seconds["held"])
        phase, reason = _LET_GO_AS[self._word] if self._word is not None else (Phase.RUNNING, "")
        if phase is not Phase.RUNNING:
            self.stand(phase, reason=reason)
        elif (expected and expected <= self._runs) or await self._catcher.has_started(timeout):
            self.stand(Phase.RUNNING)
        else:
            self.stand(Phase.FAILED, reason="NotRunning", detail=f"it was let go and does not run after {timeout:g} s")

    def _wind_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = self._heard_at + self.order.hold_seconds - self._clocks.since_boot()
        self._timer = self._loop.call_later(max(left, 0.0), self.end, Word.TIMED_OUT)

    def _let_go(self) -> None:
        if not self.holding.on:
            return
        if self._word is Word.SUPERSEDED:
            return  # who has superseded it takes over what stands still
        if self._word is Word.DELETED and self.order.kind is rounds.OrderKind.RESTART:
            self.holding.kill()  # it has not begun, and would stand still until the end of its grace period
        else:
            self._runs = self.holding.let_go()
        self._noted(self.record())
