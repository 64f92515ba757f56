"""Who is to be obeyed: the leader with the highest epoch that this node has heard of, also after a restart."""

import structlog

from agent.coordination import ports
from agent.history.store import HistoryError
from common import aio

log = structlog.get_logger(__name__)


class Fence:
    """Keeps the highest epoch that was obeyed."""

    def __init__(self, epochs: ports.Epochs) -> None:
        self._epochs = epochs
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
                self._obeyed = max(self._obeyed, await self._epochs.obeyed_epoch())
            except HistoryError as error:
                log.warning("hub.epoch_unreadable", error=str(error))
                await backoff.wait()
            else:
                return

    async def admits(self, epoch: int) -> bool:
        """Whether to obey somebody of that epoch; a higher one is on disk before it is obeyed.

        A disk that refuses does not make a leader less of one: without it nothing new is begun anyway, and what is held
        must be let go.
        """
        if epoch < self._obeyed:
            return False
        if epoch > self._obeyed:
            log.info("hub.new_epoch", epoch=epoch, before=self._obeyed)
            self._obeyed = epoch
            try:
                await self._epochs.obey(epoch)
            except HistoryError as error:
                log.error("hub.epoch_not_saved", epoch=epoch, error=str(error))
        return True
