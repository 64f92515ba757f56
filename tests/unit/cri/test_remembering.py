"""Answers of a runtime are cached up to a size limit."""

from kubemend.agent.clients.cri import cache
from kubemend.agent.clients.cri.cache import Remembered

LARGE = cache.MOST_OF_ONE - 1000


def test_cached_answer_stays_until_forgotten() -> None:
    known: Remembered[str, str] = Remembered()
    known.put("a", "1")
    known.put("a", "2")
    assert known.get("a") == "2"
    known.forget("a")
    known.forget("a")
    assert known.get("a") is None


def test_oversized_answer_is_not_cached() -> None:
    known: Remembered[str, list[str]] = Remembered()
    known.put("a", ["small"])
    known.put("a", [f"VARIABLE_{number}=x" for number in range(50_000)])  # as a container's environment can be
    assert known.get("a") is None


def test_total_size_limit_keeps_the_latest() -> None:
    known: Remembered[int, str] = Remembered()
    for number in range(1000):
        known.put(number, "x" * LARGE)
    found = [number for number in range(1000) if known.get(number) is not None]
    assert found == list(range(1000 - len(found), 1000))
    assert 10 < len(found) <= cache.MOST_OF_ALL // LARGE


def test_count_limit_keeps_the_latest() -> None:
    known: Remembered[int, str] = Remembered()
    for number in range(1000):
        known.put(number, "x")
    assert [number for number in range(1000) if known.get(number)] == list(range(1000 - cache.MOST, 1000))
