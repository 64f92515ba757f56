"""Whether a pod's memory limit leaves room for a held successor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.restart.headroom import HELD_SUCCESSOR_BYTES, PodMemory, has_room, no_room_reason

MIB = 1 << 20
BYTES = st.integers(0, 1 << 50)


@pytest.mark.parametrize(
    ("memory", "has_room"),
    [
        (None, True),
        (PodMemory(limit=1024 * MIB, used=100 * MIB), True),
        (PodMemory(limit=1024 * MIB, used=1024 * MIB - HELD_SUCCESSOR_BYTES), True),
        (PodMemory(limit=1024 * MIB, used=1024 * MIB - HELD_SUCCESSOR_BYTES + 1), False),
        (PodMemory(limit=1024 * MIB, used=1024 * MIB, page_cache=500 * MIB), True),
        (PodMemory(limit=1024 * MIB, used=1024 * MIB, page_cache=5 * MIB), False),
        (PodMemory(limit=10 * MIB, used=0), False),
    ],
)
def test_no_room_reason_only_near_the_limit(memory: PodMemory | None, has_room: bool) -> None:
    assert (no_room_reason(memory) == "") is has_room


def test_no_room_reason_has_the_distance_and_a_hint() -> None:
    assert no_room_reason(PodMemory(limit=64 * MIB, used=60 * MIB, page_cache=1 * MIB)) == (
        "the pod is 5 MiB below its memory limit of 64 MiB, and a successor held next to the old container may "
        "take 16 MiB; raise the limit"
    )


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, True),
        (PodMemory(limit=100, used=60), True),
        (PodMemory(limit=100, used=61), False),
        (PodMemory(limit=100, used=61, page_cache=1), True),
    ],
)
def test_has_room_counts_page_cache_as_free(memory: PodMemory | None, expected: bool) -> None:
    assert has_room(memory, needed=40) is expected


@given(limit=BYTES, used=BYTES, cache=BYTES, more=BYTES)
def test_no_room_reason_is_never_lifted_by_more_use(limit: int, used: int, cache: int, more: int) -> None:
    if no_room_reason(PodMemory(limit, used, cache)) and cache <= used:
        assert no_room_reason(PodMemory(limit, used + more, cache))
