"""Queries to the NVML worker that wait for their answers."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.sources.nvml.protocol import DevicesAnswer, Query


@dataclass(frozen=True, slots=True)
class Unknown:
    """NVML could not be queried. No evidence about any device."""

    reason: str


class Questions:
    """The open queries; each gets its own answer, or Unknown."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._open: dict[int, asyncio.Future[DevicesAnswer | Unknown]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a query has no answer yet."""
        return bool(self._open)

    async def ask(
        self, uuids: Sequence[DeviceId], *, send: Callable[[Query], None], timeout: float
    ) -> DevicesAnswer | Unknown:
        """Send a query and wait for its answer, ``timeout`` seconds at most."""
        request = next(self._serials)
        future: asyncio.Future[DevicesAnswer | Unknown] = asyncio.get_running_loop().create_future()
        self._open[request] = future
        try:
            send(Query(request=request, uuids=tuple(uuids)))
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            return Unknown(f"NVML did not answer within {timeout:.3g} s")
        finally:
            del self._open[request]

    def answer(self, answer: DevicesAnswer) -> None:
        """Pass an answer to its caller, if it still waits."""
        self._settle(answer.request, answer)

    def give_up(self, reason: str) -> None:
        """Answer all open queries with Unknown."""
        for request in self._open:
            self._settle(request, Unknown(reason))

    def _settle(self, request: int, answer: DevicesAnswer | Unknown) -> None:
        future = self._open.get(request)
        if future is not None and not future.done():
            future.set_result(answer)
