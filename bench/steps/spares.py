"""Await the spares of trainers that kubemend's launcher runs: each fault comes when all of them are ready."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.steps import records
from hack.devnode.observer import Observer
from kubemend.agent.clients.launcher import exchange
from kubemend.agent.restart import process

_SPARE_SECONDS: Final = 300.0
_ANSWER_SECONDS: Final = 1.0
_LOOK_AGAIN: Final = 0.2


async def main_process(observer: Observer, pod: str) -> exchange.LauncherAddress:
    """Return the main process of a pod's trainer."""
    (container,) = (await observer.see(pod)).running["trainer"]
    pid = await observer.pid(container)
    return exchange.LauncherAddress(pid, container, process.CACHE_FOLDER, Path("/proc"))


@dataclass(frozen=True, slots=True)
class FaultGate:
    """Allow the faults of a trainer whose records are ``file``. ``pods`` returns the pods that need a spare.

    ``had_spare`` has for each fault whether all spares were ready. After five minutes it comes without: a spare
    compiles next to a trainer that uses all CPUs.
    """

    observer: Observer
    file: Path
    pods: Callable[[], Awaitable[Sequence[str]]]
    had_spare: list[bool] = field(default_factory=list)

    async def open(self, *, faults: int) -> None:
        """Allow each fault once the trainer has recovered from the one before and the spares are ready."""
        for number in range(faults):
            await records.until_recovered(self.file, count=number)
            addresses = [await main_process(self.observer, pod) for pod in await self.pods()]
            try:
                async with asyncio.timeout(_SPARE_SECONDS):
                    await asyncio.gather(*map(_until_ready, addresses))
                self.had_spare.append(True)
            except TimeoutError:
                self.had_spare.append(False)
            (self.file.parent / f"fail-{number}").touch()


async def _until_ready(address: exchange.LauncherAddress) -> None:
    while not await asyncio.to_thread(_has_spare, address):  # noqa: ASYNC110 - the launcher is asked
        await asyncio.sleep(_LOOK_AGAIN)


def _has_spare(address: exchange.LauncherAddress) -> bool:
    ask = functools.partial(
        exchange.exchange, address, process.STATUS_REQUEST, passing=functools.partial(exchange.in_states, frozenset())
    )
    try:
        return ask(timeout=_ANSWER_SECONDS, least=_ANSWER_SECONDS).ready
    except exchange.NoAnswerError:
        return False
