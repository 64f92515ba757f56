"""When a hold ends of which no further message comes (``agent.model.rounds.hold_ends_at``)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.rounds import AGENT_AWAY_SECONDS, FIRST_CONTACT_SECONDS, hold_ends_at

MOMENTS = st.floats(0.0, 1e6)
HEARD, HOLD = 1000.0, 30.0


@pytest.mark.parametrize(
    ("resumed_at", "ends_at"),
    [
        (None, HEARD + HOLD),
        (HEARD + 5.0, HEARD + HOLD),
        (HEARD + 25.0, HEARD + 25.0 + FIRST_CONTACT_SECONDS),
        (HEARD + HOLD + 30.0, HEARD + HOLD + 30.0 + FIRST_CONTACT_SECONDS),
        (HEARD + HOLD + AGENT_AWAY_SECONDS - 1.0, HEARD + HOLD + AGENT_AWAY_SECONDS),
        (HEARD + 5000.0, HEARD + HOLD + AGENT_AWAY_SECONDS),
    ],
)
def test_hold_ends_at_a_resumed_hold_waits_for_the_hub_but_not_indefinitely(
    resumed_at: float | None, ends_at: float
) -> None:
    assert hold_ends_at(renewed_at=HEARD, hold_seconds=HOLD, resumed_at=resumed_at) == ends_at


@given(renewed_at=MOMENTS, hold=MOMENTS, resumed=st.lists(MOMENTS, max_size=5))
def test_hold_ends_at_is_never_earlier_nor_much_later_than_without_a_restart(
    renewed_at: float, hold: float, resumed: list[float]
) -> None:
    due = hold_ends_at(renewed_at=renewed_at, hold_seconds=hold)
    for resumed_at in resumed:
        ends_at = hold_ends_at(renewed_at=renewed_at, hold_seconds=hold, resumed_at=resumed_at)
        assert due <= ends_at <= due + AGENT_AWAY_SECONDS
