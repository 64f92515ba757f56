"""Values of options and of the kernel's files."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubemend.common import durations, exit_codes
from launcher.kubemend_run import cgroup_limit, codes, memory_limit, seconds, size

_QUANTITY = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?([KMGT]i|[kMGT])?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2Gi", 2 << 30),
        (" 1.5Ki ", 1536),
        ("500M", 500_000_000),
        ("1k", 1000),
        ("1Ti", 1 << 40),
    ],
)
def test_a_size_is_a_quantity_of_kubernetes(text: str, expected: int) -> None:
    assert size(text) == expected


@given(st.text())
@example("9" * 400)
@example("-1")
@example("1E3")
def test_any_other_size_is_refused(text: str) -> None:
    if _QUANTITY.fullmatch(text.strip()) is None:
        with pytest.raises(ValueError, match="is not a size"):
            size(text)


@given(st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,3})?(ms|s|m|h|d)?", fullmatch=True))
def test_a_duration_is_that_of_an_annotation(text: str) -> None:
    try:
        expected = durations.seconds(text)
    except ValueError:
        with pytest.raises(ValueError, match="is not a duration"):
            seconds(text)
    else:
        assert seconds(text) == expected


@given(st.one_of(st.text(), st.text("0123456789-, "), st.lists(st.integers(0, 300)).map(str)))
@example("42, 64 - 78")
@example("9" * 5000)
@example("0001")
def test_exit_codes_are_those_of_the_annotation(text: str) -> None:
    try:
        expected = exit_codes.parse(text)
    except ValueError:
        with pytest.raises(ValueError, match="list exit codes"):
            codes(text)
    else:
        assert codes(text) == expected


@pytest.mark.parametrize(("asked", "limit", "expected"), [(5, None, 5), (5, 400, 5), (0, 400, 100), (0, None, None)])
def test_the_memory_of_a_spare_is_as_asked_or_a_quarter_of_the_containers(
    asked: int, limit: int | None, expected: int | None
) -> None:
    assert memory_limit(asked, limit) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000\n"}, 1000),
        ("0::/a/b\n", {"memory.max": "max\n", "a/memory.max": "500\n", "a/b/memory.max": "700\n"}, 500),
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("0::/a\n", {}, None),
        ("5:cpu:/\n4:hugetlb,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "300\n"}, 300),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("", {"memory.max": "1000\n"}, None),
    ],
)
def test_the_memory_limit_is_the_lowest_above_the_process(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_limit(groups, str(tmp_path)) == expected
