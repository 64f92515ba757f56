"""A list's body in chunks: its items, and how much of it is held at a time."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import listing, safe_json

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
_objects = st.dictionaries(st.text(max_size=5), _values, max_size=4)


def split(body: bytes, *, sizes: list[int] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return the items of a body that comes in chunks of these sizes, repeatedly."""
    splitter, at = listing.ListSplitter(), 0
    found: list[Any] = []
    sizes = sizes or [len(body)]
    number = 0
    while at < len(body):
        size = sizes[number % len(sizes)]
        found += splitter.feed(body[at : at + size])
        at, number = at + size, number + 1
    found += splitter.end()
    return found, splitter.metadata


@given(
    items=st.lists(_objects, max_size=5),
    metadata=_objects,
    first=st.booleans(),
    indent=st.sampled_from([None, 1]),
    plain=st.booleans(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_items_and_metadata_come_out_whole_whatever_the_chunks(
    items: list[Any], metadata: dict[str, Any], first: bool, indent: int | None, plain: bool, sizes: list[int]
) -> None:
    fields: dict[str, Any] = {"kind": "PodList", "items": items, "n": 12}
    whole = {"metadata": metadata, **fields} if first else {**fields, "metadata": metadata}
    body = json.dumps(whole, indent=indent, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    assert split(body, sizes=sizes) == (items, metadata)


@pytest.mark.parametrize("items", [b"", b', "items": null', b', "items": []'])
def test_a_list_may_have_no_items(items: bytes) -> None:
    assert split(b'{"metadata": {"resourceVersion": "7"}' + items + b"}") == ([], {"resourceVersion": "7"})


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"nonsense", b"{", b'{"items": [{}', b'{"items": [}', b"{1: 2}", b"\xff"]
)
def test_incomplete_list_is_reported(body: bytes) -> None:
    with pytest.raises(listing.NoListError):
        split(body)


def test_deeply_nested_item_does_not_end_the_list() -> None:
    deep = b'{"a": ' * 5000 + b'"]}"' + b"}" * 5000
    found, _ = split(b'{"items": [{"b": 1}, ' + deep + b', {"b": 2}]}', sizes=[1000])
    assert [found[0], found[2]] == [{"b": 1}, {"b": 2}]
    assert found[1] == safe_json.loads(deep)


def test_endless_item_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LONGEST", 1000)
    splitter = listing.ListSplitter()
    chunks = [b'{"items": [{"a": "', *[b"x" * 100] * 100]
    with pytest.raises(listing.NoListError, match="more than 1000 characters"):
        list(itertools.chain.from_iterable(map(splitter.feed, chunks)))


def test_yielded_items_are_not_held() -> None:
    splitter = listing.ListSplitter()
    item = json.dumps({"env": "x" * 100_000}).encode() + b","
    list(splitter.feed(b'{"items": ['))
    for _ in range(50):
        assert len(list(splitter.feed(item))) == 1
        assert len(splitter._text) <= len(item) + 100
