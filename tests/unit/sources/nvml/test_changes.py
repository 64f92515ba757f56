"""The fold from NVML polls to changes, without NVML."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.model.devices import DeviceId, DeviceLocator, Gpu, PciAddress
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml import changes
from kubemend.agent.sources.nvml.changes import Change, View, fold
from kubemend.agent.sources.nvml.protocol import Condition, Slot, Snapshot, XidEvent


def gpu(number: int) -> Gpu:
    return Gpu(uuid=DeviceId(f"GPU-{number}"), pci=PciAddress(domain=0, bus=number, device=0), index=number)


def well(number: int) -> Slot:
    return Slot(index=number, condition=Condition.ANSWERS, gpu=gpu(number), recovery_action=0)


def lost(number: int) -> Slot:
    return Slot(index=number, condition=Condition.LOST, gpu=gpu(number), error="GPU is lost")


def nameless(number: int, condition: Condition) -> Slot:
    return Slot(index=number, condition=condition, error="Unknown Error")


def run(*polls: tuple[Slot, ...]) -> tuple[View, list[tuple[FindingKind, DeviceId | None, str]]]:
    """Fold the polls and return the last view with all changes that begin something as (kind, uuid, code)."""
    view, emitted = changes_of(*polls)
    return view, [change for change in emitted if change[0] is not FindingKind.FAULT_OVER]


def changes_of(
    *polls: tuple[Slot, ...], before: View | None = None
) -> tuple[View, list[tuple[FindingKind, DeviceId | None, str]]]:
    """Fold the polls and return the last view with all changes."""
    view, seen = before or View(), list[tuple[FindingKind, DeviceId | None, str]]()
    for slots in polls:
        view, new = fold(view, Snapshot(taken_at=0.0, clock=0.0, driver_version="", slots=slots))
        seen += [(change.kind, change.device.uuid, change.code) for change in new]
    return view, seen


LOST, BACK, RECOVERY = FindingKind.DEVICE_LOST, FindingKind.DEVICE_BACK, FindingKind.RECOVERY_ACTION


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        pytest.param([(well(0), well(1))], [], id="healthy-gpus-are-no-news"),
        pytest.param([(well(0),), (lost(0),), (lost(0),)], [(LOST, "GPU-0", "")], id="lost-is-emitted-once"),
        pytest.param(
            [(well(0),), (lost(0),), (well(0),)], [(LOST, "GPU-0", ""), (BACK, "GPU-0", "")], id="lost-and-back"
        ),
        pytest.param([(well(0), well(1)), (well(0),)], [(LOST, "GPU-1", "")], id="no-longer-listed-is-lost"),
        pytest.param(
            [(well(0), well(1)), (well(0), nameless(1, Condition.UNREADABLE))], [], id="unreadable-index-proves-nothing"
        ),
        pytest.param(
            [(well(0), well(1)), (well(0),), (well(0), nameless(1, Condition.UNREADABLE))],
            [(LOST, "GPU-1", "")],
            id="unreadable-index-is-not-the-lost-gpu-again",
        ),
        pytest.param(
            [(well(0), well(1)), (well(0), nameless(1, Condition.LOST))],
            [(LOST, "GPU-1", "")],
            id="lost-index-is-the-one",
        ),
        pytest.param(
            [(well(0), nameless(1, Condition.LOST)), (well(0), well(1))],
            [(LOST, None, ""), (BACK, None, "")],
            id="a-stranger-is-lost-and-then-known",
        ),
        pytest.param(
            [(replace(well(0), recovery_action=2),)], [(RECOVERY, "GPU-0", "2")], id="pending-action-at-start"
        ),
        pytest.param(
            [(replace(well(0), recovery_action=1),), (replace(well(0), recovery_action=None),)],
            [(RECOVERY, "GPU-0", "1")],
            id="unread-action-keeps-the-last-one",
        ),
        pytest.param(
            [(replace(well(0), condition=Condition.RESET_REQUIRED, recovery_action=None),), (well(0),)],
            [(RECOVERY, "GPU-0", "1"), (RECOVERY, "GPU-0", "0")],
            id="reset-required-until-it-answers",
        ),
        pytest.param(
            [
                (replace(well(0), condition=Condition.RESET_REQUIRED, recovery_action=None),),
                (replace(well(0), condition=Condition.UNREADABLE, recovery_action=None),),
                (replace(well(0), recovery_action=None),),
            ],
            [(RECOVERY, "GPU-0", "1"), (RECOVERY, "GPU-0", "0")],
            id="answer-proves-the-reset-where-the-driver-reports-no-action",
        ),
        pytest.param(
            [(replace(well(0), recovery_action=1),), (lost(0),), (replace(well(0), recovery_action=1),)],
            [(RECOVERY, "GPU-0", "1"), (LOST, "GPU-0", ""), (BACK, "GPU-0", ""), (RECOVERY, "GPU-0", "1")],
            id="action-that-still-holds-is-reported-again-after-the-return",
        ),
        pytest.param(
            [
                (replace(well(0), recovery_action=1), well(1)),
                (well(1),),
                (replace(well(0), recovery_action=1), well(1)),
            ],
            [(RECOVERY, "GPU-0", "1"), (LOST, "GPU-0", ""), (BACK, "GPU-0", ""), (RECOVERY, "GPU-0", "1")],
            id="also-if-it-was-not-listed",
        ),
        pytest.param(
            [(well(0),), (lost(0),), (replace(well(0), condition=Condition.UNREADABLE),)],
            [(LOST, "GPU-0", "")],
            id="unreadable-is-not-back",
        ),
    ],
)
def test_polls_become_changes(polls: list[tuple[Slot, ...]], expected: list[tuple[FindingKind, str, str]]) -> None:
    assert run(*polls)[1] == expected


@pytest.mark.parametrize(
    ("last", "answers"),
    [
        pytest.param(well(1), True, id="answers"),
        pytest.param(replace(well(1), condition=Condition.RESET_REQUIRED), True, id="needs-a-reset"),
        pytest.param(replace(well(1), condition=Condition.UNREADABLE), False, id="unreadable"),
        pytest.param(lost(1), False, id="lost"),
        pytest.param(nameless(1, Condition.UNREADABLE), False, id="not-identified"),
    ],
)
def test_only_a_gpu_that_answered_the_last_poll_answers(last: Slot, answers: bool) -> None:
    view, _ = run((well(0), well(1)), (well(0), last))
    assert [view.gpus[gpu(number).uuid].answers for number in (0, 1)] == [True, answers]


def test_gpu_in_the_place_of_another_replaces_it() -> None:
    other = replace(well(0), gpu=replace(gpu(0), uuid=DeviceId("GPU-new")))

    view, seen = run((well(0),), (lost(0),), (other,))

    assert list(view.gpus) == ["GPU-new"]
    assert seen == [(LOST, "GPU-0", "")]


def test_lost_gpu_stays_in_view_to_locate_findings() -> None:
    view, _ = run((well(0), well(1)), (well(0), lost(1)))

    assert set(view.gpus) == {"GPU-0", "GPU-1"}
    assert view.complete
    assert view.wants_reinit


@pytest.mark.parametrize("broken", [0, 1])
def test_of_two_gpus_with_one_uuid_the_worse_counts(broken: int) -> None:
    """A board with a damaged InfoROM may have another one's UUID. Neither is known to be well."""
    pair = [well(0), replace(well(1), gpu=replace(gpu(1), uuid=gpu(0).uuid))]
    view, seen = run(tuple(pair), (replace(pair[broken], condition=Condition.LOST), pair[1 - broken]))

    assert view.ambiguous == {"GPU-0"}
    assert seen == [(LOST, "GPU-0", "")]
    assert view.unreadable == ("GPU GPU-0: several GPUs have this UUID",)


def test_xid_keeps_the_ids_of_its_mig_instance() -> None:
    event = XidEvent(observed_at=1.0, code=43, uuid=DeviceId("GPU-0"), pci=gpu(0).pci, gpu_instance=2)

    assert changes.of_xid(event) == Change(
        kind=FindingKind.XID,
        code="43",
        device=DeviceLocator(uuid=DeviceId("GPU-0"), pci=gpu(0).pci, gpu_instance=2),
        text="NVML reported Xid 43",
    )


REQUIRES_NOTHING = replace(well(0), vitals=Vitals(values={(Vital.RECOVERY_ACTION, 0): 0}))


def over(number: int, kind: FindingKind) -> tuple[FindingKind, DeviceId | None, str]:
    return FindingKind.FAULT_OVER, gpu(number).uuid, kind.value


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        pytest.param(REQUIRES_NOTHING, [over(0, LOST), over(0, RECOVERY)], id="well"),
        pytest.param(well(0), [over(0, LOST)], id="driver-has-no-such-field"),
        pytest.param(
            replace(well(0), recovery_action=1), [over(0, LOST), (RECOVERY, "GPU-0", "1")], id="wants-a-reset"
        ),
        pytest.param(replace(well(0), recovery_action=None), [over(0, LOST)], id="driver-gives-no-action"),
        pytest.param(lost(0), [(LOST, "GPU-0", "")], id="lost"),
        pytest.param(replace(lost(0), condition=Condition.UNREADABLE), [], id="unknown"),
    ],
)
def test_first_answer_ends_faults_of_previous_agent(first: Slot, expected: list[tuple[FindingKind, str, str]]) -> None:
    _, emitted = changes_of((first,), (first,))

    assert [change for change in emitted if change[1] is not None] == expected


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        pytest.param(REQUIRES_NOTHING, [over(0, RECOVERY)], id="reported"),
        pytest.param(well(0), [], id="driver-has-no-such-field"),
    ],
)
def test_first_poll_after_a_gap_shows_that_the_driver_requires_nothing(
    slot: Slot, expected: list[tuple[FindingKind, DeviceId | None, str]]
) -> None:
    """The kernel log may have reported a requirement in the gap."""
    view, _ = changes_of((slot,))

    _, emitted = changes_of((slot,), before=changes.after_gap(view))

    assert emitted == expected


def test_requirement_that_has_lasted_for_a_gap_is_no_change() -> None:
    slot = replace(well(0), recovery_action=1, vitals=Vitals(values={(Vital.RECOVERY_ACTION, 0): 1}))
    view, _ = changes_of((slot,))

    assert changes_of((slot,), before=changes.after_gap(view))[1] == []


@pytest.mark.parametrize(
    ("reset_required", "expected"),
    [
        pytest.param([gpu(0).uuid], [over(0, LOST), over(0, RECOVERY)], id="after-a-reset"),
        pytest.param([], [over(0, LOST)], id="it-always-answered"),
    ],
)
def test_answer_ends_the_requirement_of_a_driver_without_the_field_only_after_a_reset(
    reset_required: list[DeviceId], expected: list[tuple[FindingKind, DeviceId | None, str]]
) -> None:
    """The kernel log alone may have reported it to the previous agent (Xid 154)."""
    before = changes.of_earlier_agents({gpu(0).uuid: gpu(0).pci}, reset_required=reset_required)

    _, emitted = changes_of((well(0),), before=before)

    assert [change for change in emitted if change[1] is not None] == expected


NOBODYS_FAULTS_ARE_OVER = [
    (FindingKind.FAULT_OVER, None, LOST.value),
    (FindingKind.FAULT_OVER, None, FindingKind.NVML_ERROR.value),
]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        pytest.param((well(0), lost(1)), NOBODYS_FAULTS_ARE_OVER, id="all-identified"),
        pytest.param((well(0), nameless(1, Condition.UNREADABLE)), [], id="it-may-be-the-nameless-one"),
    ],
)
def test_nameless_fault_of_previous_agent_ends_when_all_are_identified(
    first: tuple[Slot, ...], expected: list[tuple[FindingKind, DeviceId | None, str]]
) -> None:
    _, emitted = changes_of(first, first)

    assert [change for change in emitted if change[1] is None] == expected


def test_gpu_lost_at_first_is_back_when_it_answers() -> None:
    _, emitted = changes_of((lost(0),), (well(0),))

    assert [change for change in emitted if change[1] is not None] == [
        (LOST, "GPU-0", ""),
        (BACK, "GPU-0", ""),
        over(0, LOST),
    ]


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        pytest.param([(well(0),)], [(LOST, "GPU-1", "")], id="missing"),
        pytest.param([(well(0), well(1))], [], id="there"),
        pytest.param([(well(0), nameless(1, Condition.UNREADABLE))], [], id="may-be-the-unreadable-one"),
        pytest.param([(well(0), nameless(1, Condition.LOST))], [(LOST, "GPU-1", "")], id="is-the-lost-one"),
        pytest.param([()], [(LOST, "GPU-0", ""), (LOST, "GPU-1", "")], id="all-are-missing"),
        pytest.param([(well(0),), (well(0), well(1))], [(LOST, "GPU-1", ""), (BACK, "GPU-1", "")], id="and-back"),
    ],
)
def test_gpus_of_previous_agents_are_missed(
    polls: list[tuple[Slot, ...]], expected: list[tuple[FindingKind, str, str]]
) -> None:
    before = changes.of_earlier_agents({gpu(number).uuid: gpu(number).pci for number in (0, 1)})

    _, emitted = changes_of(*polls, before=before)

    assert [change for change in emitted if change[0] is not FindingKind.FAULT_OVER] == expected


@pytest.mark.parametrize("name", ["GPU-1", "0000:01:00.0"])
def test_dismissed_missing_gpu_is_no_longer_missed(name: str) -> None:
    view, _ = run((well(0), well(1)), (well(0),))

    forgotten = changes.without_missing(view, name)
    _, emitted = changes_of((well(0),), before=forgotten)

    assert set(forgotten.gpus) == {"GPU-0"}
    assert emitted == []
    assert not forgotten.wants_reinit


@pytest.mark.parametrize(
    "last",
    [
        pytest.param((well(0), well(1)), id="there"),
        pytest.param((well(0), lost(1)), id="listed-as-lost"),
        pytest.param((well(0), nameless(1, Condition.LOST)), id="may-be-the-nameless-one"),
    ],
)
def test_gpu_on_the_bus_is_not_forgotten(last: tuple[Slot, ...]) -> None:
    view, _ = run((well(0), well(1)), last)

    assert changes.without_missing(view, "GPU-1") == view


slots = st.lists(
    st.builds(
        lambda number, condition, named, action: Slot(
            index=number,
            condition=condition,
            gpu=gpu(number) if named else None,
            recovery_action=action if condition is Condition.ANSWERS else None,
        ),
        number=st.integers(0, 3),
        condition=st.sampled_from(Condition),
        named=st.booleans(),
        action=st.none() | st.integers(0, 4),
    ),
    max_size=4,
    unique_by=lambda slot: slot.index,
).map(tuple)


@given(polls=st.lists(slots, max_size=8))
def test_lost_and_back_alternate_for_every_gpu(polls: list[tuple[Slot, ...]]) -> None:
    _, seen = run(*polls)

    for uuid in {uuid for _, uuid, _ in seen if uuid is not None}:
        turns = [kind for kind, where, _ in seen if where == uuid and kind in (LOST, BACK)]
        assert turns == [LOST, BACK] * (len(turns) // 2) + [LOST] * (len(turns) % 2)


@given(polls=st.lists(slots, max_size=8), last=slots)
def test_repeated_poll_gives_no_change(polls: list[tuple[Slot, ...]], last: tuple[Slot, ...]) -> None:
    assert run(*polls, last)[1] == run(*polls, last, last)[1]


@given(polls=st.lists(slots, max_size=8))
def test_no_gpu_is_forgotten(polls: list[tuple[Slot, ...]]) -> None:
    view, _ = run(*polls)

    assert set(view.gpus) == {slot.gpu.uuid for poll in polls for slot in poll if slot.gpu is not None}
