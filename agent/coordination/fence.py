"""Who is to be obeyed: the leader with the highest epoch that this node has heard of, also after a restart."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from agent.coordination import ports
from agent.history.store import HistoryError
from common import aio, epochs

log = structlog.get_logger(__name__)

_SKEW: Final = 2 * epochs.CLOCK_SKEW
"""Seconds: what a leader may take for an epoch by its clock is one by ours, too."""


class Fence:
    """Keeps the highest epoch that was obeyed. One that there cannot be yet is neither obeyed nor remembered."""

    def __init__(self, store: ports.Epochs, *, clock: Callable[[], float] = time.time) -> None:
        """Create it; ``clock`` gives Unix seconds, which no epoch is above."""
        self._store = store
        self._clock = clock
        self._obeyed = 0

    @property
    def obeyed(self) -> int:
        """The highest epoch so far; 0: none."""
        return self._obeyed

    async def load(self) -> None:
        """Take up what an earlier agent has obeyed. Before that is known nobody may be obeyed, so it is tried again."""
        backoff = aio.Backoff(limit=5.0)
        while True:
            try:
                stored = await self._store.obeyed_epoch()
            except HistoryError as error:
                log.warning("hub.epoch_unreadable", error=str(error))
                await backoff.wait()
            else:
                if self.believes(stored):
                    self._obeyed = max(self._obeyed, stored)
                else:
                    log.warning("hub.epoch_forgotten", epoch=stored)
                return

    def believes(self, epoch: int) -> bool:
        """Whether there can be a leader of that epoch by now."""
        return epoch <= self._highest

    @property
    def _highest(self) -> int:
        return epochs.highest(self._clock(), skew=_SKEW)

    async def admits(self, epoch: int) -> bool:
        """Whether to obey somebody of that epoch; a higher one is on disk before it is obeyed.

        A disk that refuses does not make a leader less of one: without it nothing new is begun anyway, and what is held
        must be let go.
        """
        if epoch < self._obeyed or not self.believes(epoch):
            return False
        if epoch > self._obeyed:
            log.info("hub.new_epoch", epoch=epoch, before=self._obeyed)
            self._obeyed = epoch
            try:
                await self._store.obey(epoch, highest=self._highest)
            except HistoryError as error:
                log.error("hub.epoch_not_saved", epoch=epoch, error=str(error))
        return True
