"""One question to the runtime for all who ask at one time, each about one pod.

When all members of a gang on a node are restarted, each of them looks at its pod again and again. A call costs the
runtime and us more than the few lines that it is about: what comes while one is under way is asked together, next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from agent.model.workloads import PodUid

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """Lists what pods have. ``ask`` is given the pods, and may return others', too; what it raises is raised by all."""

    def __init__(self, ask: Callable[[frozenset[PodUid]], Awaitable[Mapping[PodUid, tuple[_T, ...]]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[PodUid, asyncio.Future[tuple[_T, ...]]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def of(self, pod: PodUid) -> tuple[_T, ...]:
        """Return what a pod has, by a call that begins after this one."""
        outcome: asyncio.Future[tuple[_T, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((pod, outcome))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_all(), name="shared listing")
        return await outcome

    async def _ask_for_all(self) -> None:
        """Ask until nobody waits. It begins after all that is ready to run: who comes in one go is asked for in one."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._answer(waiting)
        finally:
            self._asking = None

    async def _answer(self, waiting: "list[tuple[PodUid, asyncio.Future[tuple[_T, ...]]]]") -> None:
        try:
            found = await self._ask(frozenset(pod for pod, _ in waiting))
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            for _, outcome in waiting:
                if not outcome.done():
                    outcome.set_exception(error)
        else:
            for pod, outcome in waiting:
                if not outcome.done():
                    outcome.set_result(found.get(pod, ()))
        finally:
            for _, outcome in waiting:
                outcome.cancel()  # the connection is closed, and nobody answers any more
