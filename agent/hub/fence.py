"""Accept orders only from the leader with the highest epoch that this node has seen, also after a restart."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.journal.store import JournalError
from kubemend.common import aio, epochs

log = structlog.get_logger(__name__)

_SKEW: Final = 2 * epochs.CLOCK_SKEW
"""Allowed clock difference in seconds: an epoch that is plausible by a leader's clock is so by the agent's."""


class Fence:
    """Keep the highest accepted epoch. An epoch that cannot exist yet is neither accepted nor stored."""

    def __init__(self, store: ports.Epochs, *, clock: Callable[[], float] = time.time) -> None:
        """Create it; ``clock`` returns Unix seconds, the upper limit of an epoch."""
        self._store = store
        self._clock = clock
        self._obeyed = 0

    @property
    def obeyed(self) -> int:
        """Return the highest epoch so far; 0: none."""
        return self._obeyed

    async def load(self) -> None:
        """Load the epoch that a previous agent accepted. Retries, because no leader may be accepted before that."""
        backoff = aio.Backoff(limit=5.0)
        while True:
            try:
                stored = await self._store.obeyed_epoch()
            except JournalError as error:
                log.warning("hub.epoch_unreadable", error=str(error))
                await backoff.wait()
            else:
                if self.believes(stored):
                    self._obeyed = max(self._obeyed, stored)
                else:
                    log.warning("hub.epoch_forgotten", epoch=stored)
                return

    def believes(self, epoch: int) -> bool:
        """Return whether a leader of that epoch can exist by now."""
        return epoch <= self._highest

    @property
    def _highest(self) -> int:
        return epochs.highest(self._clock(), skew=_SKEW)

    async def admits(self, epoch: int) -> bool:
        """Return whether to accept a leader of that epoch; a higher one is written to disk first.

        If the epoch cannot be persisted it is accepted anyway: nothing new starts without the journal, but held
        containers must still be released.
        """
        if epoch < self._obeyed or not self.believes(epoch):
            return False
        if epoch > self._obeyed:
            log.info("hub.new_epoch", epoch=epoch, before=self._obeyed)
            self._obeyed = epoch
            try:
                await self._store.obey(epoch, highest=self._highest)
            except JournalError as error:
                log.error("hub.epoch_save_failed", epoch=epoch, error=str(error))
        return True
