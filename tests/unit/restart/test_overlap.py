"""Whether a successor may import while its predecessor dies."""

import pytest

from kubemend.agent.restart import overlap
from kubemend.agent.restart.overlap import Obstacle, Request


@pytest.mark.parametrize(
    ("several", "in_round", "cleans", "expected"),
    [
        (False, False, False, None),
        (False, True, False, Obstacle.IN_ROUND),
        (True, False, False, Obstacle.SEVERAL_CONTAINERS),
        (False, False, True, Obstacle.CLEANS),
        (True, True, True, Obstacle.IN_ROUND),
    ],
)
def test_obstacle_is_what_forbids_the_successor_to_run(
    several: bool, in_round: bool, cleans: bool, expected: Obstacle | None
) -> None:
    assert overlap.obstacle(Request(several), in_round=in_round, cleans=cleans) is expected


@pytest.mark.parametrize("obstacle", Obstacle)
def test_note_of_each_obstacle_has_its_reason_and_a_text(obstacle: Obstacle) -> None:
    note = overlap.note("trainer", obstacle)
    assert note == f"trainer did not import while the old program ended: {obstacle.text} ({obstacle.value})"


def test_note_of_an_overlap_names_the_container() -> None:
    assert overlap.note("trainer", None) == "trainer imported while the old program ended"
