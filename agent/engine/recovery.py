"""Take up what an earlier agent left open when it died."""

from collections.abc import Callable

import structlog

from agent.actuator import swap as swap_actuator
from agent.actuator.outcomes import Outcome, Result
from agent.engine import ports, targets
from agent.history.store import Store
from agent.restart import clone, intents, swap

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
        for intent in lost:
            outcome = await self._outside.actuator.carry_out(intent, material=None, resolution=swap.Resolution.UNDO)
            log.warning("restart.orphan", restart=intent.id, container=str(intent.target), result=outcome.result.value)
        for intent in sorted(unfinished, key=lambda item: item.order is not intents.Order.CREATE_FIRST):
            await self._resume(intent)
        return len(unfinished) + len(lost)

    async def _resume(self, intent: intents.Intent) -> None:
        stale = self._now() - intent.created_at > STALE_AFTER
        outcome = await self._outside.actuator.carry_out(
            intent,
            material=await self._material(intent),
            resolution=swap.Resolution.UNDO if stale else swap.Resolution.FINISH,
        )
        log.warning(
            "restart.resumed", restart=intent.id, container=str(intent.target), stale=stale, result=outcome.result.value
        )
        await self._close(intent, outcome)

    async def _close(self, intent: intents.Intent, outcome: Outcome) -> None:
        if outcome.result is not Result.UNFINISHED:
            await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())

    async def _material(self, intent: intents.Intent) -> swap_actuator.Material | None:
        """The old container still knows its config, unless kubelet's GC took it."""
        target = intent.target
        pod = self._outside.pods.pods().get(target.pod.uid)
        views = await self._outside.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
        old = next((view for view in views if view.id == intent.old), None)
        if old is None:
            return None
        info = await self._outside.runtime.container_info(old.id)
        shown = targets.Target(info=info, siblings=views, view=old, sandbox_ready=True)
        try:
            return await targets.material(
                self._outside.runtime, shown, intent=intent, pod=pod, processes=self._outside.processes
            )
        except clone.CloneRefusedError as error:
            log.warning("restart.not_cloneable", restart=intent.id, error=str(error))
            return None
