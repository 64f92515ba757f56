"""Messages about links: read as they were written, cut short they say nothing, and only links are links."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.network import netlink
from agent.sources.network.netlink import Link, ListingError
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
def test_links_are_read_as_they_were_written(links: list[Link]) -> None:
    packet = b"".join(map(padded, map(link_message, links)))
    assert [raw.decode() for raw in netlink.raw_links(packet)] == links


def test_a_bridge_that_a_link_leaves_does_not_make_it_vanish() -> None:
    link = Link("eth1", 7, admin_up=True, up=True, gone=True)
    assert list(netlink.raw_links(link_message(link, bridge=True))) == []


@given(LINKS, st.integers(0, 200))
def test_a_message_that_is_cut_short_is_no_link(link: Link, length: int) -> None:
    message = link_message(link)
    assert list(netlink.raw_links(message[: min(length, len(message) - 1)])) == []


@given(st.binary(max_size=300))
def test_noise_is_survived(noise: bytes) -> None:
    list(netlink.raw_links(noise))


@given(LINKS, st.binary(max_size=64))
def test_attributes_that_make_no_sense_are_survived(link: Link, noise: bytes) -> None:
    head = link_message(link)[:32]
    whole = struct.pack("=I", len(head) + len(noise)) + head[4:] + noise
    list(netlink.raw_links(whole))


def test_a_list_that_the_kernel_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -13))
    with pytest.raises(ListingError, match="Permission denied"):
        netlink.links()


def test_a_list_that_is_never_whole_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, struct.pack("=IHHII", 16, 16, 0x10, 1, 0))
    with pytest.raises(ListingError, match="faster than they can be listed"):
        netlink.links()


def test_this_machine_lists_its_links() -> None:
    assert "lo" in {raw.decode().name for raw in netlink.links()}


def padded(message: bytes) -> bytes:
    return message + b"\0" * (-len(message) % 4)


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """Let the kernel answer every request with this packet."""

    class Answering(socket.socket):
        def recv(self, *_args: object) -> bytes:
            return answer

    monkeypatch.setattr(socket, "socket", Answering)
