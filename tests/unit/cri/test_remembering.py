"""What a runtime has told is remembered as long as there is room for it."""

from agent.cri import remembering
from agent.cri.remembering import Remembered

LARGE = remembering.MOST_OF_ONE - 1000


def test_the_latest_is_remembered_until_it_is_forgotten() -> None:
    known: Remembered[str, str] = Remembered()
    known.put("a", "1")
    known.put("a", "2")
    assert known.get("a") == "2"
    known.forget("a")
    known.forget("a")
    assert known.get("a") is None


def test_what_is_too_large_is_asked_for_each_time() -> None:
    known: Remembered[str, list[str]] = Remembered()
    known.put("a", ["small"])
    known.put("a", [f"VARIABLE_{number}=x" for number in range(50_000)])  # as a container's environment can be
    assert known.get("a") is None


def test_of_much_the_latest_is_remembered() -> None:
    known: Remembered[int, str] = Remembered()
    for number in range(1000):
        known.put(number, "x" * LARGE)
    found = [number for number in range(1000) if known.get(number) is not None]
    assert found == list(range(1000 - len(found), 1000))
    assert 10 < len(found) <= remembering.MOST_OF_ALL // LARGE


def test_of_many_the_latest_are_remembered() -> None:
    known: Remembered[int, str] = Remembered()
    for number in range(1000):
        known.put(number, "x")
    assert [number for number in range(1000) if known.get(number)] == list(range(1000 - remembering.MOST, 1000))
