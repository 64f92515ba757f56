"""Patterns of failure rules: RE2 as in upstream's Go."""

import pytest

from kubemend.controller.jobset.spec import patterns


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
def test_pattern_matches_anywhere_like_go(pattern: str, text: str, *, expected: bool) -> None:
    assert patterns.any_matches((pattern,), text) is expected


@pytest.mark.parametrize("pattern", ["(", "(?=ahead)", r"(a)\1", "(?<!behind)x", "a{1001}", "*"])
def test_invalid_re2_pattern_matches_nothing(pattern: str) -> None:
    assert patterns.invalid((pattern, "fine")) == (pattern,)
    assert not patterns.any_matches((pattern,), pattern)


def test_invalid_pattern_does_not_hide_others() -> None:
    assert patterns.any_matches(("(", "bug"), "a bug")


def test_any_pattern_matches_and_no_pattern_does_not() -> None:
    assert patterns.any_matches(("x", "bug"), "a bug")
    assert not patterns.any_matches(("x", "y"), "a bug")


def test_overlong_pattern_is_invalid() -> None:
    longest = "a" * patterns.MOST_CHARACTERS
    assert patterns.invalid((longest, longest + "a")) == (longest + "a",)


def test_pattern_with_too_much_memory_is_invalid() -> None:
    greedy = r"((\pL{1000}){1000}){10}"
    assert patterns.invalid((greedy,)) == (greedy,)


def test_exponential_pattern_takes_linear_time() -> None:
    assert not patterns.any_matches(("(a+)+$",), "a" * 30_000 + "b")
