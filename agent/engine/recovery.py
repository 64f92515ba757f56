"""Take up what an earlier agent left open when it died."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import structlog

from agent.actuator.outcomes import Outcome, Result
from agent.cri.errors import CriError
from agent.engine import acts, aftermath, announcements, conditions, ports, preparing
from agent.history.store import HistoryError, Store
from agent.model.workloads import PodUid
from agent.restart import admission, clone, intents, steps, swap
from common import contained
from common.contained import Part

log = structlog.get_logger(__name__)

STALE_AFTER = 60.0
"""Seconds after which an unfinished intent is taken back, as far as that is safe, rather than carried out."""

_PATIENCE = aftermath.Patience(kubelet=5.0, pod=5.0)
"""Nothing new is begun meanwhile, so kubelet's consent is not awaited for as long as after a restart of our own."""

_TRIES_TO_TAKE_BACK = 2

_API_PATIENCE = 5.0
"""Seconds for the API server to say which pods are this node's, before a lost successor is taken for one of them."""


_TRY_LATER = (CriError, HistoryError)
"""What says nothing about an intent: the runtime or the disk does not answer now."""


@dataclass(frozen=True, slots=True)
class _Resumed:
    """An intent that was taken up, and how it ended."""

    intent: intents.AnyIntent
    act: acts.Act
    outcome: Outcome


class Recovery:
    """Replays the journal. Run it before anything new is begun."""

    def __init__(
        self,
        *,
        outside: ports.Outside,
        store: Store,
        now: Callable[[], float],
        patience: aftermath.Patience = _PATIENCE,
        spared: Collection[PodUid] = (),
    ) -> None:
        """``spared`` are the pods that a round holds: what was begun there is the round's to finish."""
        self._outside = outside
        self._store = store
        self._now = now
        self._spared = frozenset(spared)
        self._aftermath = aftermath.Aftermath(outside=outside, patience=patience)

    async def run(self) -> int:
        """Finish or take back every open intent; return how many there were.

        A successor that waits CREATED beside a running container is the dangerous state (kubelet would start a
        third), so those come first. What kubelet has seen while nobody was there it may still act on, up to a second
        later: as after any restart, its consent is awaited, and a copy that it starts is resolved. Raises CriError or
        HistoryError: try again, and begin nothing new until then.
        """
        opened = await self._store.unfinished()
        unfinished = [intent for intent in opened if intent.target.pod.uid not in self._spared]
        views = await self._outside.runtime.list_containers()
        owned = frozenset(intent.id for intent in opened) | await self._store.quarantined()
        lost = await self._mine(swap.orphans(views, owned=owned, now=self._now()))
        for orphan in lost:
            with contained.within(Part.REPLAY, orphan.target, passing=_TRY_LATER):
                await self._take_back_orphan(orphan)
        dangerous_first = sorted(unfinished, key=lambda item: not _is_dangerous(item))
        resumed = [await self._resume(intent) for intent in dangerous_first]
        await asyncio.gather(*(self._conclude(each) for each in resumed if each is not None))
        return len(unfinished) + len(lost)

    async def _take_back_orphan(self, orphan: intents.Intent) -> None:
        act = preparing.without_material(self._outside, orphan)
        outcome = await act.carry_out(resolution=steps.Resolution.UNDO)
        log.warning("restart.orphan", restart=orphan.id, container=str(orphan.target), result=outcome.result.value)

    async def _mine(self, lost: Sequence[intents.Intent]) -> Sequence[intents.Intent]:
        """Leave out what is of no pod of this node, where the API server says in time which those are.

        Where nodes are simulated they share a runtime, and what looks lost may be a neighbour's, on its way. A pod that
        the API server does not know any more is kubelet's to end.
        """
        if lost and not self._outside.pods.synced:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_API_PATIENCE):
                    await self._outside.pods.until_synced()
        if not self._outside.pods.synced:
            return lost
        return [orphan for orphan in lost if orphan.target.pod.uid in self._outside.pods.pods()]

    async def _resume(self, intent: intents.AnyIntent) -> _Resumed | None:
        """Replay one intent; None where that has failed for a defect of ours.

        Each try is written down before it is made: one that ends this process counts, too. After the last one the
        intent is quarantined. Raises CriError or HistoryError.
        """
        if not await self._store.replay_begins(intent.id):
            contained.given_up(Part.REPLAY)
            await self._quarantine(intent, why="agents have died at it again and again")
            return None
        try:
            with contained.within(Part.REPLAY, intent.target, passing=_TRY_LATER) as work:
                resumed = await self._replay(intent)
        except _TRY_LATER:
            await self._store.replay_ended(intent.id, failed=False)
            raise
        if work.error is None:
            await self._store.replay_ended(intent.id, failed=False)
            return resumed
        why = contained.why(work.error)
        outcome = await taken_back(preparing.bare(self._outside, intent), why=why)
        if outcome.result is not Result.UNFINISHED:
            await self._close(intent, outcome)
        elif await self._store.replay_ended(intent.id, failed=True):
            await self._quarantine(intent, why=why)
        return None

    async def _quarantine(self, intent: intents.AnyIntent, *, why: str) -> None:
        """Keep an intent for whoever looks into it, and replay it no more. All that concerns others goes on."""
        await self._store.quarantine(intent.id, why=why, now=self._now())
        log.error("restart.quarantined", restart=intent.id, container=str(intent.target), why=why)
        self._tell_of_failure(intent, f"quarantined in the journal, for its replay fails: {why}")

    async def _close(self, intent: intents.AnyIntent, outcome: Outcome) -> None:
        log.error("restart.replay_failed", restart=intent.id, container=str(intent.target), detail=outcome.detail)
        await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())
        self._tell_of_failure(intent, outcome.detail)

    def _tell_of_failure(self, intent: intents.AnyIntent, detail: str) -> None:
        target = intent.target
        with contained.within(Part.REPLAY, target):
            refusal = admission.Decision(admission.Verb.REFUSE, admission.Reason.INTERNAL, detail)
            cause = admission.Cause(intent.reason, intent.reason, happened_at=intent.created_at)
            condition = conditions.for_refusal(container=target.name, cause=cause, decision=refusal)
            self._outside.reporter.set(target.pod, condition)
            self._outside.announcements.tell(announcements.of_restart(target, condition, now=self._now()))

    async def _replay(self, intent: intents.AnyIntent) -> _Resumed:
        stale = self._now() - intent.created_at > STALE_AFTER
        act = await self._act(intent)
        outcome = await act.carry_out(resolution=steps.Resolution.UNDO if stale else steps.Resolution.FINISH)
        log.warning(
            "restart.resumed",
            restart=intent.id,
            container=str(intent.target),
            strategy=intent.strategy.value,
            stale=stale,
            result=outcome.result.value,
        )
        return _Resumed(intent, act, outcome)

    async def _act(self, intent: intents.AnyIntent) -> acts.Act:
        try:
            return await preparing.resume(self._outside, intent)
        except clone.CloneRefusedError as error:
            log.warning("restart.not_cloneable", restart=intent.id, error=str(error))
            assert isinstance(intent, intents.Intent), "nothing is copied for a whole pod that is taken up"
            return preparing.without_material(self._outside, intent)

    async def _verified(self, resumed: _Resumed) -> Outcome:
        outcome, checks = await self._aftermath.settle(resumed.act, resumed.outcome)
        log.info(
            "restart.verified",
            restart=resumed.intent.id,
            container=str(resumed.intent.target),
            result=outcome.result.value,
            checks={check.name: check.state.value for check in checks},
        )
        return outcome

    async def _conclude(self, resumed: _Resumed) -> None:
        """Verify it, and close its intent. One that stays unfinished is taken up again at the next start."""
        outcome = resumed.outcome
        if outcome.result.restarted:
            with contained.within(Part.VERIFICATION, resumed.intent.target, passing=_TRY_LATER):
                outcome = await self._verified(resumed)
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(resumed.intent.id, outcome=outcome.result.value, now=self._now())


async def taken_back(act: acts.Act, *, why: str) -> Outcome:
    """Take a restart back in which we have come upon a defect of ours, as far as that is safe.

    Nothing is made or cleaned any more, for that may be what fails: what has ended already is kubelet's to start. The
    outcome is UNFINISHED where even this does not come to an end; else ``why`` is in its detail.
    """
    for _ in range(_TRIES_TO_TAKE_BACK):
        with contained.within(Part.RESTART, act.target):
            outcome = await act.bare().carry_out(resolution=steps.Resolution.UNDO)
            if outcome.result is not Result.UNFINISHED:
                result = Result.FAILED if outcome.result is Result.UNDONE else outcome.result
                return replace(outcome, result=result, detail=why)
    return Outcome(Result.UNFINISHED, detail=why)


def _is_dangerous(intent: intents.AnyIntent) -> bool:
    return isinstance(intent, intents.Intent) and intent.order is intents.Order.CREATE_FIRST
