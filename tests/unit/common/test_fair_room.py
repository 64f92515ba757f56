"""Each address has a fair share of the room, and none excludes another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common import fair_room
from kubemend.common.fair_room import CrowdedError, FairRoom, Room


def entered(*addresses: str, room: Room) -> FairRoom[int]:
    """Return a crowd into which guest 0, 1, … have come, a second after each other."""
    crowd: FairRoom[int] = FairRoom()
    for number, address in enumerate(addresses):
        assert crowd.enter(number, address=address, room=room, now=float(number)) is None
    return crowd


def test_address_has_a_limit() -> None:
    room = Room(each=2, all_together=9)
    crowd = entered("a", "a", room=room)
    with pytest.raises(CrowdedError):
        crowd.enter(2, address="a", room=room, now=0)
    assert crowd.enter(2, address="b", room=room, now=0) is None
    crowd.leave(0, address="a")
    assert crowd.enter(3, address="a", room=room, now=0) is None
    assert len(crowd) == 3


def test_full_room_evicts_the_oldest_of_the_largest_share() -> None:
    room = Room(each=9, all_together=4)
    crowd = entered("b", "a", "a", "a", room=room)
    assert crowd.enter(4, address="c", room=room, now=9) == 1
    assert len(crowd) == 4


def test_no_eviction_for_an_equal_share() -> None:
    room = Room(each=9, all_together=2)
    crowd = entered("a", "b", room=room)
    with pytest.raises(CrowdedError):
        crowd.enter(2, address="c", room=room, now=9)
    with pytest.raises(CrowdedError):
        crowd.enter(2, address="a", room=room, now=9)


def test_zero_room_admits_none() -> None:
    with pytest.raises(CrowdedError):
        FairRoom[int]().enter(1, address="a", room=Room(each=1, all_together=0), now=0)


def test_oldest_peers_are_listed() -> None:
    crowd = entered("a", "b", "a", room=Room(each=9, all_together=9))
    assert sorted(crowd.since(1.0)) == [0, 1]
    crowd.leave(0, address="a")
    crowd.leave(0, address="a")
    assert sorted(crowd.since(1.0)) == [1]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_bounds_always_hold(steps: list[tuple[str, bool]]) -> None:
    room = Room(each=3, all_together=5)
    crowd: FairRoom[int] = FairRoom()
    inside: dict[int, str] = {}
    for number, (address, leaves) in enumerate(steps):
        if leaves and inside:
            guest, of = inside.popitem()
            crowd.leave(guest, address=of)
            continue
        try:
            goes = crowd.enter(number, address=address, room=room, now=0)
        except CrowdedError:
            assert address in inside.values() or len(inside) == 5
            continue
        if goes is not None:
            del inside[goes]
        inside[number] = address
        assert len(crowd) == len(inside) <= 5
        assert list(inside.values()).count(address) <= 3


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 1234), "10.0.0.1"),
        (("::ffff:10.0.0.1", 1234, 0, 0), "10.0.0.1"),
        (("fd00:1:2:3::7", 1234, 0, 0), "fd00:1:2:3::/64"),
        (("fe80::1%eth0", 1234, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
        ((), ""),
    ],
)
def test_address_of_a_connection(peer: object, address: str) -> None:
    assert fair_room.address_of(peer) == address
