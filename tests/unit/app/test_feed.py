"""What a slow reader gets, and what it costs nobody."""

from typing import Any

from agent.actuator.outcomes import Outcome, Result
from agent.actuator.progress import Begun, Queued, Reported
from agent.app.feed import Feed
from agent.restart.intents import Strategy
from agent.restart.verification import Check, CheckState

VERIFIED = Reported(Outcome(Result.SWAPPED), (Check("one-running", CheckState.PASSED),), settled=True)


async def names(feed: Feed) -> list[Any]:
    return [event["event"] async for event in feed.read(silence=60.0) if event is not None]


async def test_events_come_in_their_order_and_the_end_last() -> None:
    feed = Feed()
    feed.tell(Begun(1000.0, "r1", Strategy.SWAP, ["trainer"], 1))
    feed.tell(VERIFIED)
    feed.end(stopped=False)
    assert await names(feed) == ["begun", "settled", "done"]


async def test_what_does_not_fit_is_counted_and_the_newest_kept() -> None:
    feed = Feed(capacity=2)
    for _ in range(5):
        feed.tell(Queued())
    feed.tell(VERIFIED)
    feed.end(stopped=False)
    told = [event async for event in feed.read(silence=60.0) if event is not None]
    assert [event["event"] for event in told] == ["missed", "queued", "settled", "done"]
    assert told[0]["count"] == 4


async def test_the_end_is_known_even_if_the_report_was_missed() -> None:
    feed = Feed(capacity=1)
    feed.tell(VERIFIED)
    feed.tell(Queued())
    feed.end(stopped=True)
    told = [event async for event in feed.read(silence=60.0) if event is not None]
    assert (told[-1]["event"], told[-1]["ok"]) == ("done", True)


async def test_silence_is_broken_by_signs_of_life() -> None:
    feed = Feed()
    reading = feed.read(silence=0.01)
    assert [await anext(reading), await anext(reading)] == [None, None]
    feed.end(stopped=False)
    assert [event["event"] async for event in reading if event is not None] == ["done"]
