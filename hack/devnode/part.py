"""Run a part of a dev cluster for the length of an ``async with`` block."""

import abc
from typing import Self


class Part(abc.ABC):
    """Something that ``start`` starts and ``stop`` ends."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Start it; it works when this returns."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
