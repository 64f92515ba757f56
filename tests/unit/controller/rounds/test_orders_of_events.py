"""Words that come twice, late or in another order lead to the same end; and every move is in the tables."""

from hypothesis import given
from hypothesis import strategies as st

from controller.model.rounds import RoundEvent, StepPhase, StepTold
from controller.rounds import outcome, transitions
from controller.rounds.states import Phase, Stand
from tests.unit.controller import builders
from tests.unit.controller.rounds.test_machine import Play, uid

SIZE = 4
STOPPED: list[RoundEvent] = [StepTold(uid(index), StepPhase.STOPPED) for index in range(SIZE)]
RUNNING: list[RoundEvent] = [StepTold(uid(index), StepPhase.RUNNING) for index in range(SIZE)]


@given(
    first=st.permutations(STOPPED),
    twice=st.lists(st.sampled_from(STOPPED), max_size=6),
    second=st.permutations(RUNNING),
    stale=st.lists(st.sampled_from(STOPPED + RUNNING[:1]), max_size=6),
    at_once=st.booleans(),
)
def test_the_end_is_the_same(
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
    assert {one.stand for one in outcome.current(play.round)} == {Stand.RUNNING}


def test_what_is_over_has_nothing_after_it() -> None:
    assert transitions.PHASES.keys() == set(Phase)
    assert {phase for phase, after in transitions.PHASES.items() if not after} == {
        phase for phase in Phase if phase.is_final
    }
    assert transitions.STANDS.keys() == set(Stand)
    ends = {stand for stand, after in transitions.STANDS.items() if not after}
    assert ends == {Stand.COMPLETED, Stand.GONE, Stand.FAILED}


def test_nothing_goes_back() -> None:
    """From each stand the ends can be reached, and no stand can be come to again."""
    for stand in Stand:
        reached: set[Stand] = set()
        waiting = [stand]
        while waiting:
            for after in transitions.STANDS[waiting.pop()] - reached:
                reached.add(after)
                waiting.append(after)
        assert stand not in reached
        assert not transitions.STANDS[stand] or {Stand.COMPLETED, Stand.GONE, Stand.FAILED} <= reached
