"""Patterns of failure rules: RE2 as upstream's Go takes it."""

import pytest

from controller.jobset import patterns


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("bug", "job failed because of a bug", True),
        ("^job failed because.*", "job failed because of a bug", True),
        ("^because", "job failed because of a bug", False),
        ("failed$", "failed\n", False),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("(?i)XID", "xid 48", True),
        (r"(?P<code>\d{2})\b", "xid 48", True),
        (r"\pL+", "Überlauf", True),
        ("", "anything", True),
    ],
)
def test_a_pattern_is_looked_for_anywhere_as_gos_match_string_does(pattern: str, text: str, *, expected: bool) -> None:
    assert patterns.any_matches((pattern,), text) is expected


@pytest.mark.parametrize("pattern", ["(", "(?=ahead)", r"(a)\1", "(?<!behind)x", "a{1001}", "*"])
def test_what_re2_does_not_know_is_invalid_and_matches_nothing(pattern: str) -> None:
    assert patterns.invalid((pattern, "fine")) == (pattern,)
    assert not patterns.any_matches((pattern,), pattern)


def test_an_invalid_pattern_does_not_hide_the_others() -> None:
    assert patterns.any_matches(("(", "bug"), "a bug")


def test_any_of_the_patterns_is_enough_and_none_is_not() -> None:
    assert patterns.any_matches(("x", "bug"), "a bug")
    assert not patterns.any_matches(("x", "y"), "a bug")


def test_a_pattern_may_not_be_longer_than_is_bearable() -> None:
    longest = "a" * patterns.MOST_CHARACTERS
    assert patterns.invalid((longest, longest + "a")) == (longest + "a",)


def test_a_pattern_that_would_take_too_much_memory_is_invalid() -> None:
    greedy = r"((\pL{1000}){1000}){10}"
    assert patterns.invalid((greedy,)) == (greedy,)


def test_a_pattern_that_explodes_elsewhere_takes_linear_time_here() -> None:
    assert not patterns.any_matches(("(a+)+$",), "a" * 30_000 + "b")
