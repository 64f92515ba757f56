"""A slow reader receives the newest events, and does not block the restart."""

from typing import Any

from kubemend.agent.actuator.progress import Begun, Queued, Reported
from kubemend.agent.app.control import ProgressStream
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.verification import Check, CheckState

VERIFIED = Reported(Outcome(Result.SWAPPED), (Check("one-running", CheckState.PASSED),), settled=True)


async def names(feed: ProgressStream) -> list[Any]:
    return [event["event"] async for event in feed.read(silence=60.0) if event is not None]


async def test_events_keep_their_order_and_end_is_last() -> None:
    feed = ProgressStream()
    feed.notify(Begun(1000.0, "r1", Strategy.SWAP, ["trainer"], 1))
    feed.notify(VERIFIED)
    feed.end(stopped=False)
    assert await names(feed) == ["begun", "settled", "done"]


async def test_overflow_is_counted_and_newest_events_are_kept() -> None:
    feed = ProgressStream(capacity=2)
    for _ in range(5):
        feed.notify(Queued())
    feed.notify(VERIFIED)
    feed.end(stopped=False)
    received = [event async for event in feed.read(silence=60.0) if event is not None]
    assert [event["event"] for event in received] == ["missed", "queued", "settled", "done"]
    assert received[0]["count"] == 4


async def test_end_is_delivered_even_if_report_was_dropped() -> None:
    feed = ProgressStream(capacity=1)
    feed.notify(VERIFIED)
    feed.notify(Queued())
    feed.end(stopped=True)
    received = [event async for event in feed.read(silence=60.0) if event is not None]
    assert (received[-1]["event"], received[-1]["ok"]) == ("done", True)


async def test_silence_yields_signs_of_life() -> None:
    feed = ProgressStream()
    reading = feed.read(silence=0.01)
    assert [await anext(reading), await anext(reading)] == [None, None]
    feed.end(stopped=False)
    assert [event["event"] async for event in reading if event is not None] == ["done"]
