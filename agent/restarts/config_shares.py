"""Share the memory for the configs of containers among the restarts in progress.

A restart keeps the configs that it clones to its end, an hour later with the longest grace period, and holds no slot
while it waits (``agent.restarts.slots``). Without a common bound any number of pods could fill the agent's memory.
"""

from types import TracebackType
from typing import Final, Self

from kubemend.agent.restart import clone
from kubemend.agent.restarts.slots import Slots

MOST: Final = 64 * 2**20
"""Bytes for all restarts in progress, as ``convert.weight`` estimates them.

A sixth of the agent's 384 MiB: some 400 restarts of ordinary containers (150 KiB each), or eight of the heaviest that
are read (``convert.HEAVIEST``). One eighth is never given to the namespace that has all others (``Slots``).
"""

ORDINARY: Final = 256 * 2**10
"""Bytes for a namespace that keeps none, beyond ``MOST``: a few pods with long grace periods cannot stop all others."""


def room() -> Slots:
    """Return the room for all restarts in progress."""
    return Slots(MOST, first=ORDINARY)


class NoRoomError(Exception):
    """A restart must wait until ``needed`` bytes are free: for the configs that it has read, and for the next one."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"restarts in progress leave less than {needed} bytes")
        self.needed = needed


class ConfigShare:
    """The part of one restart. Use it as a context, at whose end it is given back.

    ``waits``: the restart can wait. A round's member cannot: the others are stopped by then.
    """

    def __init__(self, room: Slots, namespace: str, *, waits: bool) -> None:
        self._room = room
        self._namespace = namespace
        self._waits = waits
        self._held = 0
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give the room to others: the restart keeps no config any more."""
        if self._held:
            self._room.release(self._namespace, self._held)
        self._held = self._used = 0

    def admit(self, weight: int) -> str:
        """Take room for a config that is about to be read; return why it cannot be read, "" if it can (``Admit``).

        Raises NoRoomError if it can be read later, after ``wait``.
        """
        needed = self._used + weight
        if needed > self._held:
            if not self._room.try_acquire(self._namespace, needed - self._held):
                if self._waits and needed <= self._room.of_one:
                    raise NoRoomError(needed)
                detail = f"with it the restarts in progress would take more than {MOST >> 20} MiB of memory"
                return str(clone.CloneRefusedError(clone.CloneRefusal.TOO_LARGE, detail))
            self._held = needed
        self._used = needed
        return ""

    async def wait(self, needed: int) -> None:
        """Wait, outside of the context, until that many bytes are free, and hold them for the next ``admit``."""
        await self._room.acquire(self._namespace, goes_on=False, count=needed)
        self._held = needed
