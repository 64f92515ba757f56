"""When Python looks for garbage: never while a round is under way."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from controller.app import garbage

WAIT = 60.0


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The generations that were collected; Python collects nothing of its own accord."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["generation"])

    gc.disable()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()


async def test_what_is_young_is_collected_once_nothing_is_under_way(collections: list[int]) -> None:
    looks: list[int] = []
    collected = asyncio.Event()

    def is_busy() -> bool:
        looks.append(len(collections))
        if collections:
            collected.set()
        return len(looks) < 2

    kept = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
    collecting = asyncio.create_task(garbage.collect(is_busy=is_busy), name="garbage")
    async with asyncio.timeout(WAIT):
        await collected.wait()
    collecting.cancel()
    assert (looks[:2], collections[0], len(kept)) == ([0, 0], 1, 100_000)


async def test_little_that_is_young_is_left_alone(collections: list[int]) -> None:
    looks = 0
    looked = asyncio.Event()

    def is_busy() -> bool:
        nonlocal looks
        looks += 1
        if looks > 1:
            looked.set()
        return False

    gc.collect()
    collections.clear()
    collecting = asyncio.create_task(garbage.collect(is_busy=is_busy), name="garbage")
    async with asyncio.timeout(WAIT):
        await looked.wait()
    collecting.cancel()
    assert collections == []
