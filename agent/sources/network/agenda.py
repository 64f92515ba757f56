"""Schedule of the periodic network checks."""

import asyncio
import contextlib
import math
from collections.abc import Mapping

from kubemend.agent.sources.network.reader import Task


class Agenda:
    """Each task is due once per period, in seconds, and whenever it is requested.

    Initially only the scan is scheduled.
    """

    def __init__(self, periods: Mapping[Task, float]) -> None:
        self._periods = dict(periods)
        self._next = {Task.SCAN: 0.0, Task.PORTS: math.inf, Task.DETAILS: math.inf}
        self._wanted = asyncio.Event()

    def want(self, *tasks: Task) -> None:
        """Make these tasks due now."""
        self._next.update(dict.fromkeys(tasks, 0.0))
        self._wanted.set()

    def rest(self, *tasks: Task) -> None:
        """Suspend these tasks until they are requested."""
        self._next.update(dict.fromkeys(tasks, math.inf))

    def delay(self, seconds: float) -> None:
        """Delay all tasks by so many seconds."""
        self._next = dict.fromkeys(Task, asyncio.get_running_loop().time() + seconds)

    async def next(self) -> frozenset[Task]:
        """Wait until a task is due, and return all that are."""
        while True:
            self._wanted.clear()
            now = asyncio.get_running_loop().time()
            due = frozenset(task for task, at in self._next.items() if at <= now)
            if due:
                self._next.update({task: now + self._periods[task] for task in due})
                return due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._next.values())):
                    await self._wanted.wait()
