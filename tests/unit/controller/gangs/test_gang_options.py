"""A gang's options: its members' annotations combined, the strictest of each, without guesses."""

import pytest

from kubemend.controller.gangs import gang_options
from kubemend.controller.gangs.gang_options import BadAnnotationError, GangOptions
from kubemend.controller.model.members import Member, PodPhase
from tests.unit.controller import builders


def member(index: int, **annotations: str) -> Member:
    named = {f"kubemend.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return builders.member(index, annotations={**builders.OPTED_IN, **named})


def test_no_annotations_give_defaults() -> None:
    assert gang_options.of([member(0), member(1)]) == GangOptions()


def test_agreeing_members_give_their_options() -> None:
    both = [member(index, max_restarts="5", fatal_exit_codes="42, 64-66", hold="2m") for index in range(2)]
    assert gang_options.of(both) == GangOptions(5, frozenset({42, 64, 65, 66}), 120.0)


def test_disagreeing_members_give_strictest_options() -> None:
    found = gang_options.of(
        [
            member(0, max_restarts="5", fatal_exit_codes="1", hold="5s"),
            member(1, max_restarts="2", fatal_exit_codes="2"),
        ]
    )
    assert found == GangOptions(2, frozenset({1, 2}), 5.0)


@pytest.mark.parametrize("text", ["true", "false"])
def test_statement_about_the_owner_is_accepted(text: str) -> None:
    assert gang_options.of([member(0, owner_recreates_pods=text)]) == GangOptions()


def test_replaced_pod_is_ignored() -> None:
    old = builders.member(0, phase=PodPhase.FAILED, annotations={"kubemend.io/max-restarts": "many"})
    assert gang_options.of([old, builders.member(0, generation=1)]) == GangOptions()


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("max_restarts", "-1"),
        ("max_restarts", "many"),
        ("max_restarts", "9" * 5000),  # Python refuses to parse it
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
        ("owner_recreates_pods", "maybe"),
    ],
)
def test_invalid_annotation_is_reported_with_its_place(annotation: str, text: str) -> None:
    name = annotation.replace("_", "-")
    with pytest.raises(BadAnnotationError, match=f"^member train/1: annotation kubemend.io/{name}"):
        gang_options.of([member(0), member(2, **{annotation: text}), member(1, **{annotation: text})])


@pytest.mark.parametrize(("text", "seconds"), [(None, 0.0), ("30", 30.0), ("1m", 60.0), ("soon", 0.0)])
def test_grace_period_only_extends_a_deadline(text: str | None, seconds: float) -> None:
    one = member(0) if text is None else member(0, grace_period=text)
    assert gang_options.grace_seconds(one) == seconds
