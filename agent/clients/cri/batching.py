"""Batch concurrent queries to the runtime, each about one pod, into one call.

When all members of a gang on a node are restarted, each of them lists its pod again and again. A call costs the runtime
and the agent more than the few lines that it returns: queries that arrive during a call share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from kubemend.agent.model.workloads import PodUid

_T = TypeVar("_T")


class BatchedQuery(Generic[_T]):
    """Query by pod. ``ask`` gets the pods, and may return others', too; all waiting callers raise its error."""

    def __init__(self, ask: Callable[[frozenset[PodUid]], Awaitable[Mapping[PodUid, tuple[_T, ...]]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[PodUid, asyncio.Future[tuple[_T, ...]]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def of(self, pod: PodUid) -> tuple[_T, ...]:
        """Return a pod's items, by a call that begins after this one."""
        outcome: asyncio.Future[tuple[_T, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((pod, outcome))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_all(), name="shared listing")
        return await outcome

    async def _ask_for_all(self) -> None:
        """Query until no caller waits. Runs after all ready tasks, so that concurrent callers share one call."""
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
                outcome.cancel()  # the connection is closed, and no answer will come
