"""Python's garbage collection: never while a round is under way."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from kubemend.controller.coordinator import gc_schedule

WAIT = 60.0


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the collected generations; Python's automatic collection is off."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["generation"])

    gc.disable()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()


async def test_young_objects_are_collected_once_idle(collections: list[int]) -> None:
    checks: list[int] = []
    collected = asyncio.Event()

    def is_busy() -> bool:
        checks.append(len(collections))
        if collections:
            collected.set()
        return len(checks) < 2

    kept = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
    collecting = asyncio.create_task(gc_schedule.collect(is_busy=is_busy), name="garbage")
    async with asyncio.timeout(WAIT):
        await collected.wait()
    collecting.cancel()
    assert (checks[:2], collections[0], len(kept)) == ([0, 0], 1, 100_000)


async def test_few_young_objects_are_not_collected(collections: list[int]) -> None:
    checks = 0
    checked = asyncio.Event()

    def is_busy() -> bool:
        nonlocal checks
        checks += 1
        if checks > 1:
            checked.set()
        return False

    gc.collect()
    collections.clear()
    collecting = asyncio.create_task(gc_schedule.collect(is_busy=is_busy), name="garbage")
    async with asyncio.timeout(WAIT):
        await checked.wait()
    collecting.cancel()
    assert collections == []
