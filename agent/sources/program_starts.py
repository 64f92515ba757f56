"""When launchers started the programs in their containers: a container's fault may end while the container runs on."""

import asyncio
import time
from collections.abc import Callable

from kubemend.agent.model.workloads import ContainerId


class ProgramStarts:
    """The start of the program that runs now in each container whose launcher is followed.

    It is kept by ``clock``, which is never set: the wall clock, ``now`` (Unix time), may be set later. Both are in
    seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clock = clock
        self._at: dict[ContainerId, float] = {}
        self._changed = asyncio.Event()

    def started(self, container: ContainerId, age: float | None) -> None:
        """Record how long a container's program has run; None: its launcher is no longer followed."""
        if age is None:
            self._at.pop(container, None)
            return
        self._at[container] = self._clock() - age
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, container: ContainerId, moment: float) -> None:
        """Wait until a container's program is one that was started after ``moment`` (Unix time)."""
        at = self._clock() - max(0.0, self._now() - moment)
        while self._at.get(container, at) <= at:
            await self._changed.wait()
