"""A gang's wishes: its members' annotations together, the strictest of each; never a guess."""

import pytest

from controller.gangs import wishes
from controller.gangs.wishes import BadAnnotationError, Wishes
from controller.model.members import Member, PodPhase
from tests.unit.controller import builders


def member(index: int, **annotations: str) -> Member:
    named = {f"kubemend.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return builders.member(index, annotations={**builders.OPTED_IN, **named})


def test_nothing_said_is_nothing_wished() -> None:
    assert wishes.of([member(0), member(1)]) == Wishes()


def test_members_that_agree() -> None:
    both = [member(index, max_restarts="5", fatal_exit_codes="42, 64-66", hold="2m") for index in range(2)]
    assert wishes.of(both) == Wishes(5, frozenset({42, 64, 65, 66}), 120.0)


def test_of_members_that_disagree_the_strictest_counts() -> None:
    found = wishes.of(
        [
            member(0, max_restarts="5", fatal_exit_codes="1", hold="5s"),
            member(1, max_restarts="2", fatal_exit_codes="2"),
        ]
    )
    assert found == Wishes(2, frozenset({1, 2}), 5.0)


def test_a_pod_that_was_replaced_has_no_say() -> None:
    old = builders.member(0, phase=PodPhase.FAILED, annotations={"kubemend.io/max-restarts": "many"})
    assert wishes.of([old, builders.member(0, generation=1)]) == Wishes()


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("max_restarts", "-1"),
        ("max_restarts", "many"),
        ("max_restarts", "9" * 5000),  # Python refuses to read it
        ("max_restarts", "9" * 500),
        ("fatal_exit_codes", "0"),
        ("fatal_exit_codes", "256"),
        ("fatal_exit_codes", "9-3"),
        ("fatal_exit_codes", "1-2-3"),
        ("fatal_exit_codes", "SIGKILL"),
        ("fatal_exit_codes", "9" * 5000),
        ("fatal_exit_codes", "1-255," * 10_000),  # it would take seconds
        ("hold", "a while"),
        ("hold", "9" * 5000),
        ("hold", "25h"),
        ("hold", "9" * 400),
        ("restart", "Sometimes"),
    ],
)
def test_what_cannot_be_understood_is_told_with_its_place(annotation: str, text: str) -> None:
    name = annotation.replace("_", "-")
    with pytest.raises(BadAnnotationError, match=f"^member train/1: annotation kubemend.io/{name}"):
        wishes.of([member(0), member(2, **{annotation: text}), member(1, **{annotation: text})])


@pytest.mark.parametrize(("text", "seconds"), [(None, 0.0), ("30", 30.0), ("1m", 60.0), ("soon", 0.0)])
def test_the_grace_period_only_lengthens_a_deadline(text: str | None, seconds: float) -> None:
    one = member(0) if text is None else member(0, grace_period=text)
    assert wishes.grace_seconds(one) == seconds
