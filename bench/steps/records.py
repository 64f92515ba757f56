"""Await the records of a running trainer."""

import asyncio
from pathlib import Path
from typing import Final

from bench.steps import recovery

_RECOVERY_SECONDS: Final = 400.0  # the Job controller's backoff is 10 s, 20 s, 40 s, …
_LOOK_AGAIN: Final = 0.2


async def with_recoveries(file: Path, *, count: int, what: str) -> list[recovery.Record]:
    """Return the records once the trainer has recovered ``count`` times. Raises TimeoutError with its last records."""
    found = read(file)
    while len(recovery.recoveries(found)) < count:
        before = len(recovery.recoveries(found))
        try:
            async with asyncio.timeout(_RECOVERY_SECONDS):
                while len(recovery.recoveries(found)) == before:
                    await asyncio.sleep(_LOOK_AGAIN)
                    found = read(file)
        except TimeoutError as error:
            raise TimeoutError(f"{what}: no recovery {before + 1}; its last records: {found[-3:]}") from error
    return found


async def until_recovered(file: Path, *, count: int) -> None:
    """Wait until the trainer has recovered ``count`` times and works."""
    while not _has_recovered(read(file), count=count):  # noqa: ASYNC110 - the trainer writes a file
        await asyncio.sleep(_LOOK_AGAIN)


async def until_unexpected_end(file: Path) -> None:
    """Raise RuntimeError once the trainer ends by itself. That one has two successors is possible, and no failure."""
    while recovery.deaths_without_fault(read(file)) <= 1:  # noqa: ASYNC110 - the trainer writes a file
        await asyncio.sleep(_LOOK_AGAIN)
    raise RuntimeError("the trainer ends by itself; its log has the reason")


def _has_recovered(found: list[recovery.Record], *, count: int) -> bool:
    return len(recovery.recoveries(found)) >= count and any(each.stage == "step" for each in found)


async def until_step(file: Path, step: int, *, what: str) -> None:
    """Wait until the trainer has finished a step. Raises TimeoutError with its last records."""
    try:
        async with asyncio.timeout(_RECOVERY_SECONDS):
            while last_step(file) < step:  # noqa: ASYNC110 - the trainer writes a file
                await asyncio.sleep(_LOOK_AGAIN)
    except TimeoutError as error:
        raise TimeoutError(f"{what}: no step {step}; its last records: {read(file)[-3:]}") from error


def last_step(file: Path) -> int:
    """Return the last finished step; 0 without one."""
    return max((each.step for each in read(file)), default=0)


def add_fault(file: Path, *, at: int) -> None:
    """Record a fault for a trainer that is dead. ``at`` is in nanoseconds, of the trainers' clock."""
    with file.open("a") as records:
        records.write(f"{at} fault {last_step(file)}\n")


def faults(file: Path) -> int:
    """Return how many faults a trainer has recorded."""
    return sum(each.stage == "fault" for each in read(file))


def read(file: Path) -> list[recovery.Record]:
    """Return the records so far."""
    return recovery.parse(file.read_text()) if file.exists() else []
