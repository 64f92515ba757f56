import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kube import watching

_lines = st.lists(st.binary(min_size=1, max_size=50).filter(lambda line: b"\n" not in line and line.strip()))


@given(lines=_lines, data=st.data())
def test_lines_come_out_whole_whatever_the_chunks(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = watching.LineSplitter(longest=10_000)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        chunk, stream = stream[:size], stream[size:]
        found += splitter.feed(chunk)
    assert found == lines


def test_half_a_line_is_kept_for_later() -> None:
    splitter = watching.LineSplitter(longest=10_000)
    assert list(splitter.feed(b"ab\n\ncd")) == [b"ab"]
    assert list(splitter.feed(b"e\n")) == [b"cde"]


def test_error_events_are_told_apart() -> None:
    line = json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).encode()
    assert watching.parse(line) == watching.WatchFailure(code=410, status={"code": 410, "reason": "Expired"})


def test_events_know_where_a_watch_goes_on() -> None:
    line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}).encode()
    event = watching.parse(line)
    assert isinstance(event, watching.WatchEvent)
    assert (event.type, event.resource_version) == (watching.EventType.BOOKMARK, "7")


@pytest.mark.parametrize("line", [b"{}", b"[]", b"nonsense", b'{"type": "NEW", "object": {}}', b'{"type": "ADDED"}'])
def test_what_is_no_event_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        watching.parse(line)


def test_a_line_that_never_ends_is_not_kept_for_ever() -> None:
    splitter = watching.LineSplitter(longest=100)
    chunks = itertools.repeat(b"x" * 10, 20)
    with pytest.raises(watching.NoEventError, match="more than 100 bytes"):
        list(itertools.chain.from_iterable(map(splitter.feed, chunks)))


def test_of_an_object_is_kept_what_is_asked_for() -> None:
    line = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}).encode()
    event = watching.parse(line, lambda obj: obj["metadata"]["name"])
    assert event == watching.WatchEvent(watching.EventType.ADDED, "a", "7")


def test_a_bookmark_has_no_object_of_which_anything_could_be_kept() -> None:
    line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}).encode()
    event = watching.parse(line, lambda obj: obj["metadata"]["name"])
    assert isinstance(event, watching.WatchEvent)
    assert event.resource_version == "7"
