"""When launchers started the programs in their containers: a container's fault may end while the container runs on."""

import asyncio

from kubemend.agent.model.workloads import ContainerId


class ProgramStarts:
    """The start of the program that runs now in each container whose launcher is followed (Unix time)."""

    def __init__(self) -> None:
        self._at: dict[ContainerId, float] = {}
        self._changed = asyncio.Event()

    def started(self, container: ContainerId, at: float | None) -> None:
        """Record when a container's program was started; None: its launcher is no longer followed."""
        if at is None:
            self._at.pop(container, None)
            return
        self._at[container] = at
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, container: ContainerId, moment: float) -> None:
        """Wait until a container's program is one that was started after ``moment``."""
        while self._at.get(container, moment) <= moment:
            await self._changed.wait()
