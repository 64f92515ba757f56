"""Take up what an earlier agent left open when it died."""

from collections.abc import Callable

import structlog

from agent.actuator.outcomes import Outcome, Result
from agent.engine import acts, ports, preparing
from agent.history.store import Store
from agent.restart import clone, intents, steps, swap

log = structlog.get_logger(__name__)

STALE_AFTER = 60.0
"""Seconds after which an unfinished intent is taken back, as far as that is safe, rather than carried out."""


class Recovery:
    """Replays the journal. Run it before anything new is begun."""

    def __init__(self, *, outside: ports.Outside, store: Store, now: Callable[[], float]) -> None:
        self._outside = outside
        self._store = store
        self._now = now

    async def run(self) -> int:
        """Finish or take back every open intent; return how many there were.

        A successor that waits CREATED beside a running container is the dangerous state (kubelet would start a
        third), so those come first. Raises CriError or HistoryError: try again, and begin nothing new until then.
        """
        unfinished = await self._store.unfinished()
        views = await self._outside.runtime.list_containers()
        lost = swap.orphans(views, owned=frozenset(intent.id for intent in unfinished), now=self._now())
        for orphan in lost:
            outcome = await preparing.without_material(self._outside, orphan).carry_out(
                resolution=steps.Resolution.UNDO
            )
            log.warning("restart.orphan", restart=orphan.id, container=str(orphan.target), result=outcome.result.value)
        for intent in sorted(unfinished, key=lambda item: not _is_dangerous(item)):
            await self._resume(intent)
        return len(unfinished) + len(lost)

    async def _resume(self, intent: intents.AnyIntent) -> None:
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
        await self._close(intent, outcome)

    async def _act(self, intent: intents.AnyIntent) -> acts.Act:
        try:
            return await preparing.resume(self._outside, intent)
        except clone.CloneRefusedError as error:
            log.warning("restart.not_cloneable", restart=intent.id, error=str(error))
            assert isinstance(intent, intents.Intent), "nothing is copied for a whole pod that is taken up"
            return preparing.without_material(self._outside, intent)

    async def _close(self, intent: intents.AnyIntent, outcome: Outcome) -> None:
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())


def _is_dangerous(intent: intents.AnyIntent) -> bool:
    return isinstance(intent, intents.Intent) and intent.order is intents.Order.CREATE_FIRST
