"""How much is kept of one object and of one namespace."""

import json
import tracemalloc
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from kubemend.common.kube import shares


def kept_of(*, one: int = 1000, namespace: int = 3000, total: int = 10_000) -> shares.Shares[str]:
    return shares.Shares(shares.Bounds(bare=lambda _: "bare", one=one, namespace=namespace, total=total))


def test_too_large_object_is_kept_in_bare_form() -> None:
    kept = kept_of()
    assert kept.fit("1", "small", namespace="a") == "small"
    assert kept.fit("2", "x" * 2000, namespace="a") == "bare"
    assert (kept.is_bare("1"), kept.is_bare("2"), kept.bare) == (False, True, 1)
    assert not kept.has_room  # there will never be any for it


def test_a_namespace_has_no_more_than_its_share_and_others_have_theirs() -> None:
    kept = kept_of()
    found = [kept.fit(f"a{number}", "x" * 900, namespace="a") for number in range(5)]
    assert [each == "bare" for each in found] == [False, False, False, True, True]
    assert kept.fit("b", "x" * 900, namespace="b") != "bare"


def test_deleted_or_smaller_object_makes_room() -> None:
    kept = kept_of()
    for number in range(4):
        kept.fit(str(number), "x" * 900, namespace="a")
    assert kept.is_bare("3")
    assert not kept.has_room
    kept.fit("0", "x", namespace="a")
    assert kept.has_room
    assert kept.fit("3", "x" * 900, namespace="a") != "bare"
    assert kept.bare == 0
    kept.drop("1")
    kept.drop("1")
    assert kept.fit("4", "x" * 900, namespace="a") != "bare"


def whole_of(kept: shares.Shares[str], *names: str) -> list[str]:
    return [name for name in names if not kept.is_bare(name)]


def test_largest_namespace_gives_up_its_newest_objects_when_all_together_have_too_much() -> None:
    kept = kept_of(total=4000)
    for name in ("a0", "a1", "a2", "b0"):
        kept.fit(name, "x" * 900, namespace=name[0])
    assert kept.take_reduced() == {}
    assert kept.fit("b1", "x" * 900, namespace="b") != "bare"
    assert kept.take_reduced() == {"a2": "a"}
    assert whole_of(kept, "a0", "a1", "a2", "b0", "b1") == ["a0", "a1", "b0", "b1"]
    assert kept.fit("b2", "x" * 900, namespace="b") == "bare"  # no other namespace has more
    assert kept.take_reduced() == {}
    assert kept.fit("c0", "x" * 100, namespace="c") != "bare"
    assert kept.fit("c1", "x" * 800, namespace="c") != "bare"
    assert list(kept.take_reduced()) == ["a1"]


def test_small_namespace_loses_nothing_to_a_large_one() -> None:
    kept = kept_of(total=4000)
    kept.fit("small", "x" * 900, namespace="small")
    for number in range(100):
        kept.fit(str(number), "x" * 900, namespace=f"large-{number % 2}")
        assert not kept.is_bare("small")
    assert kept.bare == 97


def test_total_is_never_exceeded_by_many_namespaces() -> None:
    kept = kept_of(total=20_000)
    found = {f"{number % 40}-{number}": 100 + number * 37 % 800 for number in range(400)}
    for uid, size in found.items():
        kept.fit(uid, "x" * size, namespace=uid.partition("-")[0])
        held = sum(shares.weight("x" * found[each]) for each in found if each in kept._kept and not kept.is_bare(each))
        assert held <= 20_000
    assert kept.bare > 300


def test_object_that_gave_way_fits_again_only_after_a_deletion() -> None:
    kept = kept_of(total=2200)
    for name, size in (("a0", 900), ("a1", 900), ("a2", 400)):
        kept.fit(name, "x" * size, namespace="a")
    kept.fit("b", "x" * 350, namespace="b")
    assert list(kept.take_reduced()) == ["a1"]
    assert not kept.has_room  # there is some for a2, but a list would end the same
    kept.drop("a0")
    assert kept.has_room


def test_without_bounds_everything_is_kept() -> None:
    kept: shares.Shares[str] = shares.Shares(None)
    assert kept.fit("1", "x" * 10**6, namespace="a") == "x" * 10**6


@dataclass(frozen=True, slots=True)
class Nested:
    text: str
    items: tuple[Any, ...]
    mapping: Any


def test_the_weight_of_a_value_counts_all_that_is_in_it() -> None:
    text = "x" * 10_000
    value = Nested(text, (text, frozenset({text})), MappingProxyType({text: [text]}))
    assert 10_000 <= shares.weight(value) <= 11_000
    assert shares.weight([f"{number:010000}" for number in range(5)]) >= 50_000
    assert shares.weight(None) < 100


@pytest.mark.parametrize("size", [1, 50, 5000])
def test_the_weight_of_json_is_what_it_takes_in_memory(size: int) -> None:
    text = json.dumps([{"name": "x" * size, "value": str(number)} for number in range(2000)])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        value = json.loads(text)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 * taken <= shares.weight(value) <= 1.5 * taken
