import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import watch_protocol

_lines = st.lists(st.binary(min_size=1, max_size=50).filter(lambda line: b"\n" not in line and line.strip()))


@given(lines=_lines, data=st.data())
def test_lines_come_out_whole_whatever_the_chunks(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = watch_protocol.LineSplitter(longest=10_000)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        chunk, stream = stream[:size], stream[size:]
        found += splitter.feed(chunk)
    assert found == lines


def test_half_a_line_is_kept_for_later() -> None:
    splitter = watch_protocol.LineSplitter(longest=10_000)
    assert list(splitter.feed(b"ab\n\ncd")) == [b"ab"]
    assert list(splitter.feed(b"e\n")) == [b"cde"]


def test_error_events_are_distinguished() -> None:
    line = json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).encode()
    assert watch_protocol.parse(line) == watch_protocol.WatchFailure(
        code=410, status={"code": 410, "reason": "Expired"}
    )


def test_events_have_the_version_to_resume_from() -> None:
    line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}).encode()
    event = watch_protocol.parse(line)
    assert isinstance(event, watch_protocol.WatchEvent)
    assert (event.type, event.resource_version) == (watch_protocol.EventType.BOOKMARK, "7")


@pytest.mark.parametrize("line", [b"{}", b"[]", b"nonsense", b'{"type": "NEW", "object": {}}', b'{"type": "ADDED"}'])
def test_invalid_event_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        watch_protocol.parse(line)


def test_endless_line_is_not_kept() -> None:
    splitter = watch_protocol.LineSplitter(longest=100)
    chunks = itertools.repeat(b"x" * 10, 20)
    with pytest.raises(watch_protocol.NoEventError, match="more than 100 bytes"):
        list(itertools.chain.from_iterable(map(splitter.feed, chunks)))


def test_projection_of_an_object_is_kept() -> None:
    line = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}).encode()
    event = watch_protocol.parse(line, lambda obj: obj["metadata"]["name"])
    assert event == watch_protocol.WatchEvent(watch_protocol.EventType.ADDED, "a", "7")


def test_bookmark_is_not_projected() -> None:
    line = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}).encode()
    event = watch_protocol.parse(line, lambda obj: obj["metadata"]["name"])
    assert isinstance(event, watch_protocol.WatchEvent)
    assert event.resource_version == "7"
