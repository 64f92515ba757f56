"""Messages about links: written ones round trip, truncated ones and others are ignored."""

import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.sources.network import netlink
from kubemend.agent.sources.network.netlink import Link, ListingError
from kubemend.agent.sources.network.reader import Reader
from kubemend.agent.sources.network.sysfs import Sysfs
from tests.fakes.netlink import link_message

LINKS = st.builds(
    Link,
    name=st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=15),
    index=st.integers(1, 2**31 - 1),
    admin_up=st.booleans(),
    up=st.booleans(),
    losses=st.none() | st.integers(0, 2**32 - 1),
    gone=st.booleans(),
)


@given(st.lists(LINKS, max_size=3))
def test_written_links_round_trip(links: list[Link]) -> None:
    packet = b"".join(map(padded, map(link_message, links)))
    assert [raw.decode() for raw in netlink.raw_links(packet)] == links


def test_link_that_leaves_a_bridge_is_not_gone() -> None:
    link = Link("eth1", 7, admin_up=True, up=True, gone=True)
    assert list(netlink.raw_links(link_message(link, bridge=True))) == []


@given(LINKS, st.integers(0, 200))
def test_truncated_message_is_not_a_link(link: Link, length: int) -> None:
    message = link_message(link)
    assert list(netlink.raw_links(message[: min(length, len(message) - 1)])) == []


@given(st.binary(max_size=300))
def test_noise_is_tolerated(noise: bytes) -> None:
    list(netlink.raw_links(noise))


@given(LINKS, st.binary(max_size=64))
def test_invalid_attributes_are_tolerated(link: Link, noise: bytes) -> None:
    head = link_message(link)[:32]
    whole = struct.pack("=I", len(head) + len(noise)) + head[4:] + noise
    list(netlink.raw_links(whole))


def test_refused_listing_raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -13))
    with pytest.raises(ListingError, match="Permission denied"):
        netlink.links()


def test_listing_that_is_never_complete_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, struct.pack("=IHHII", 16, 16, 0x10, 1, 0))
    with pytest.raises(ListingError, match="faster than they can be listed"):
        netlink.links()


async def test_link_that_cannot_be_decoded_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hides no other link."""
    broken, well = (
        link_message(Link(name, index, admin_up=True, up=True, losses=3)) for index, name in enumerate("ab")
    )
    no_value = struct.pack("=HH", 4, 48)  # IFLA_CARRIER_DOWN_COUNT
    broken = struct.pack("=I", len(broken) - 4) + broken[4:-8] + no_value
    done = struct.pack("=IHHIIi", 20, 3, 0, 1, 0, 0)
    answer_with(monkeypatch, broken + padded(well) + done)
    for name in "ab":
        (tmp_path / "class" / "net" / name / "device").mkdir(parents=True)
    reader = Reader(Sysfs(tmp_path), netns=None, receive_buffer=1 << 16, deadline=60.0)

    try:
        assert [link.name for link in await reader.links()] == ["b"]
    finally:
        reader.close()


def test_links_of_this_machine_are_listed() -> None:
    assert "lo" in {raw.decode().name for raw in netlink.links()}


def padded(message: bytes) -> bytes:
    return message + b"\0" * (-len(message) % 4)


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """Let the kernel answer every request with this packet."""

    class Answering(socket.socket):
        def recv(self, *_args: object) -> bytes:
            return answer

    monkeypatch.setattr(socket, "socket", Answering)
