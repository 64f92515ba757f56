"""Events that are repeated, late or reordered have the same result; and every transition is in the tables."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.coordination import StepPhase
from kubemend.controller.model.rounds import RoundEvent, StepResult
from kubemend.controller.rounds import outcome, round_builder
from kubemend.controller.rounds.states import MemberPhase, Phase
from tests.unit.controller import builders
from tests.unit.controller.rounds.test_machine import Play, uid

SIZE = 4
STOPPED: list[RoundEvent] = [StepResult(uid(index), StepPhase.STOPPED) for index in range(SIZE)]
DEAD: list[RoundEvent] = [StepResult(uid(index), StepPhase.STOPPED, "NotStarted") for index in range(SIZE)]
RUNNING: list[RoundEvent] = [StepResult(uid(index), StepPhase.RUNNING) for index in range(SIZE)]


@given(
    first=st.tuples(*map(st.sampled_from, zip(STOPPED, DEAD, strict=True))).flatmap(st.permutations),
    twice=st.lists(st.sampled_from(STOPPED + DEAD), max_size=6),
    second=st.permutations(RUNNING),
    stale=st.lists(st.sampled_from(STOPPED + DEAD + RUNNING[:1]), max_size=6),
    at_once=st.booleans(),
)
def test_any_order_of_events_has_same_end(
    first: list[RoundEvent],
    twice: list[RoundEvent],
    second: list[RoundEvent],
    stale: list[RoundEvent],
    at_once: bool,
) -> None:
    play = Play(builders.gang(SIZE))
    mixed = [each for pair in zip(second, [*stale, *second], strict=False) for each in pair]
    for batch in (first[:2] + twice[:3], twice[3:] + first[2:], mixed + second):
        if at_once:
            play.tell(*batch)
        else:
            for event in batch:
                play.tell(event)
    assert play.round.phase is Phase.DONE
    assert {one.phase for one in outcome.current(play.round)} == {MemberPhase.RUNNING}


def test_final_phases_have_no_transitions() -> None:
    assert round_builder.PHASE_TRANSITIONS.keys() == set(Phase)
    assert {phase for phase, after in round_builder.PHASE_TRANSITIONS.items() if not after} == {
        phase for phase in Phase if phase.is_final
    }
    assert round_builder.MEMBER_TRANSITIONS.keys() == set(MemberPhase)
    ends = {phase for phase, after in round_builder.MEMBER_TRANSITIONS.items() if not after}
    assert ends == {MemberPhase.COMPLETED, MemberPhase.GONE, MemberPhase.FAILED}


def test_phases_never_repeat() -> None:
    """From each phase the final ones can be reached, and no phase can be entered again."""
    for phase in MemberPhase:
        reached: set[MemberPhase] = set()
        waiting = [phase]
        while waiting:
            for after in round_builder.MEMBER_TRANSITIONS[waiting.pop()] - reached:
                reached.add(after)
                waiting.append(after)
        assert phase not in reached
        assert (
            not round_builder.MEMBER_TRANSITIONS[phase]
            or {MemberPhase.COMPLETED, MemberPhase.GONE, MemberPhase.FAILED} <= reached
        )
