"""Take up what an earlier agent left open when it died."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from agent.actuator.outcomes import Outcome, Result
from agent.engine import acts, aftermath, ports, preparing
from agent.history.store import Store
from agent.model.workloads import PodUid
from agent.restart import clone, intents, steps, swap

log = structlog.get_logger(__name__)

STALE_AFTER = 60.0
"""Seconds after which an unfinished intent is taken back, as far as that is safe, rather than carried out."""

_PATIENCE = aftermath.Patience(kubelet=5.0, pod=5.0)
"""Nothing new is begun meanwhile, so kubelet's consent is not awaited for as long as after a restart of our own."""

_API_PATIENCE = 5.0
"""Seconds for the API server to say which pods are this node's, before a lost successor is taken for one of them."""


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
        lost = await self._mine(swap.orphans(views, owned=frozenset(intent.id for intent in opened), now=self._now()))
        for orphan in lost:
            outcome = await preparing.without_material(self._outside, orphan).carry_out(
                resolution=steps.Resolution.UNDO
            )
            log.warning("restart.orphan", restart=orphan.id, container=str(orphan.target), result=outcome.result.value)
        dangerous_first = sorted(unfinished, key=lambda item: not _is_dangerous(item))
        resumed = [await self._resume(intent) for intent in dangerous_first]
        await asyncio.gather(*(self._conclude(each) for each in resumed))
        return len(unfinished) + len(lost)

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

    async def _resume(self, intent: intents.AnyIntent) -> _Resumed:
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

    async def _conclude(self, resumed: _Resumed) -> None:
        """Verify it, and close its intent. One that stays unfinished is taken up again at the next start."""
        outcome = resumed.outcome
        if outcome.result.restarted:
            outcome, checks = await self._aftermath.settle(resumed.act, outcome)
            log.info(
                "restart.verified",
                restart=resumed.intent.id,
                container=str(resumed.intent.target),
                result=outcome.result.value,
                checks={check.name: check.state.value for check in checks},
            )
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(resumed.intent.id, outcome=outcome.result.value, now=self._now())


def _is_dangerous(intent: intents.AnyIntent) -> bool:
    return isinstance(intent, intents.Intent) and intent.order is intents.Order.CREATE_FIRST
