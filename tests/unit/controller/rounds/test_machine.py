"""The round machine, rule by rule. What it does in a hostile world is in test_world."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decisions.facts import Decision, Kind, Reason
from controller.model.faults import Cause, Request
from controller.model.members import Member, NodeName, NodeView, PodPhase, PodUid
from controller.model.rounds import (
    Abort,
    Cancelled,
    Effect,
    FaultTold,
    MemberSeen,
    NodeTold,
    OrderKind,
    PodGone,
    Record,
    Recreate,
    Release,
    RoundEvent,
    RoundRef,
    StepPhase,
    StepTold,
    Stop,
)
from controller.rounds import machine, outcome, status
from controller.rounds.states import Advance, Limits, Phase, Stand
from tests.unit.controller import builders
from tests.unit.controller.builders import GANG, NOW

REF = RoundRef("team", "train-4", GANG, 4)
IN_PLACE = Decision(Kind.IN_PLACE, Reason.MEMBER_FAILED)
RECREATE_0 = Decision(Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST, "", frozenset({"train/0"}))
LIMITS = Limits()


class Play:
    """One round under way: tell it things, look at what it wants done since it was last asked."""

    def __init__(
        self, members: Iterable[Member], *, decision: Decision = IN_PLACE, cause: Cause | None = None, **changes: Any
    ) -> None:
        self.members = {member.pod.uid: member for member in members}
        self.now = NOW
        self.effects: list[Effect] = []
        self.take(
            machine.begin(
                REF,
                cause=cause or builders.fault(),
                decision=decision,
                members=self.members.values(),
                nodes=builders.nodes(len(self.members)),
                connected=frozenset(member.node for member in self.members.values()),
                now=NOW,
                **changes,
            )
        )

    def take(self, advance: Advance) -> None:
        self.advance = advance
        self.round = advance.round
        self.effects += advance.effects

    def tell(self, *events: RoundEvent, after: float = 0.0) -> None:
        self.now += after
        self.take(machine.advance(self.round, events, now=self.now))

    def told(self, phase: StepPhase, *indexes: int, reason: str = "", **more: Any) -> None:
        self.tell(*(StepTold(uid(index), phase, reason, **more) for index in indexes))

    def wanted(self, kind: type[Effect]) -> list[Any]:
        """Return what it wants done of this kind, and forget it."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def stands(self, index: int, generation: int = 0) -> Stand:
        return self.round.members[uid(index, generation)].stand


def one_cannot_be_started(size: int) -> Play:
    """A round whose first member is dead, cannot be started again, and must not be recreated."""
    play = Play([builders.member(0, owner=None), *builders.gang(size)[1:]])
    play.told(StepPhase.STOPPED, 0)
    play.told(StepPhase.FAILED, 0, reason="StartFailed")
    assert (play.round.phase, play.stands(0)) == (Phase.STOPPING, Stand.FAILED)
    return play


def uid(index: int, generation: int = 0) -> PodUid:
    return PodUid(f"uid-{index}-{generation}")


def pods(effects: Iterable[Stop | Release | Abort]) -> set[PodUid]:
    return {pod for effect in effects for pod in effect.pods}


def seen(index: int, generation: int = 0, **changes: Any) -> MemberSeen:
    return MemberSeen(builders.member(index, generation=generation, **changes))


def arrived(index: int, generation: int = 1) -> MemberSeen:
    return seen(index, generation, phase=PodPhase.PENDING)


# ---- the straight way ----


def test_all_stop_then_all_are_released_and_then_it_is_done() -> None:
    play = Play(builders.gang(3))
    stops = play.wanted(Stop)
    assert pods(stops) == {uid(0), uid(1), uid(2)}
    assert {kind for stop in stops for kind in stop.pods.values()} == {OrderKind.RESTART}
    play.told(StepPhase.STOPPED, 0, 1)
    assert (play.round.phase, play.effects) == (Phase.STOPPING, [])
    play.told(StepPhase.STOPPED, 2)
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(0), uid(1), uid(2)})
    play.told(StepPhase.RUNNING, 0, 1, 2)
    assert (play.round.phase, play.effects) == (Phase.DONE, [Record()])
    assert (play.advance.wake_at, play.advance.again) == (None, ())


def test_members_of_one_node_share_their_messages() -> None:
    play = Play([builders.member(index, node=NodeName("node-0")) for index in range(3)])
    assert [len(stop.pods) for stop in play.wanted(Stop)] == [3]
    play.told(StepPhase.STOPPED, 0, 1, 2)
    assert [len(release.pods) for release in play.wanted(Release)] == [3]


def test_what_has_no_answer_is_said_again_and_only_that() -> None:
    play = Play(builders.gang(2))
    play.wanted(Stop)
    play.told(StepPhase.STOPPED, 0)
    assert play.advance.wake_at == NOW + LIMITS.resend
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.told(StepPhase.STOPPED, 1)
    play.wanted(Release)
    play.told(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Release)) == {uid(0)}


def test_thousands_are_given_the_time_to_answer_before_all_is_said_again() -> None:
    play = Play(builders.gang(2500))
    play.wanted(Stop)
    play.told(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.resend)
    play.tell(after=LIMITS.resend)
    assert play.effects == []
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Stop)) == {uid(index) for index in range(1, 2500)}


def test_however_large_a_round_is_its_holds_are_renewed_in_time() -> None:
    limits = Limits(hold=6.0)
    assert limits.say_again(members=2500) > limits.hold / 3
    play = Play(builders.gang(2500), limits=limits)
    play.wanted(Stop)
    play.told(StepPhase.STOPPED, 0)
    play.tell(after=limits.hold / 3)
    assert len(pods(play.wanted(Stop))) == 2500


def test_a_deadline_is_looked_at_however_seldom_things_are_said_again() -> None:
    limits = Limits(stop=1.0)
    play = Play(builders.gang(2500), limits=limits)
    play.told(StepPhase.STOPPED, *range(1, 2500))
    play.wanted(Stop)
    play.tell(after=limits.stop)
    assert pods(play.wanted(Stop)) == set()
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(0)]


def test_holds_are_renewed_in_time() -> None:
    play = Play(builders.gang(2), limits=Limits(stop=100.0))
    play.told(StepPhase.STOPPED, 0)
    play.wanted(Stop)
    play.tell(after=9.0)
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.tell(after=1.0)
    assert pods(play.wanted(Stop)) == {uid(0), uid(1)}


def test_a_node_that_connects_again_is_told_at_once_where_things_stand() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0)
    play.wanted(Stop)
    play.tell(NodeTold(NodeName("node-1"), connected=True))
    assert play.wanted(Stop) == []
    play.tell(NodeTold(NodeName("node-1"), connected=False), NodeTold(NodeName("node-1"), connected=True))
    assert pods(play.wanted(Stop)) == {uid(1)}


def test_an_agent_that_is_not_connected_gets_time_to_come_back() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.tell(NodeTold(NodeName("node-0"), connected=False))
    play.tell(after=LIMITS.stop + LIMITS.reconnect - 1.0)
    assert play.wanted(Recreate) == []
    play.tell(NodeTold(NodeName("node-0"), connected=True))
    play.tell(after=LIMITS.stop - 1.0)
    assert play.wanted(Recreate) == []
    play.tell(after=1.0)
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(0)]


def test_completion_is_neither_failure_nor_restart() -> None:
    play = Play([builders.member(0, phase=PodPhase.SUCCEEDED), *builders.gang(3)[1:]])
    assert pods(play.wanted(Stop)) == {uid(1), uid(2)}
    play.told(StepPhase.COMPLETED, 1)
    play.told(StepPhase.STOPPED, 2)
    assert pods(play.wanted(Release)) == {uid(2)}
    play.told(StepPhase.RUNNING, 2)
    assert play.round.phase is Phase.DONE


def test_a_member_that_has_not_begun_is_held_but_not_waited_for() -> None:
    play = Play([builders.member(0, phase=PodPhase.PENDING), builders.member(1)])
    assert [stop.pods for stop in play.wanted(Stop)] == [{uid(0): OrderKind.HOLD}, {uid(1): OrderKind.RESTART}]
    play.told(StepPhase.STOPPED, 1)
    assert pods(play.wanted(Release)) == {uid(0), uid(1)}
    play.told(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.DONE


# ---- members that cannot stay ----


def test_a_lost_member_is_recreated_and_the_others_wait_for_the_new_one() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    assert pods(play.wanted(Stop)) == {uid(1)}
    assert [effect.pod.uid for effect in play.wanted(Recreate)] == [uid(0)]
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, list(play.round.awaited)) == (Phase.STOPPING, ["train/0"])
    play.tell(arrived(0))
    assert [stop.pods for stop in play.wanted(Stop)] == [{uid(0, 1): OrderKind.HOLD}]
    assert play.effects == []
    play.tell(StepTold(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1), uid(1)}
    play.tell(StepTold(uid(0, 1), StepPhase.RUNNING), StepTold(uid(1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE
    assert status.render(play.round)["members"] == {
        "total": 2,
        "inPlace": 1,
        "recreated": 1,
        "stopped": 2,
        "running": 2,
        "failed": 0,
    }


def test_the_others_do_not_wait_for_ever_and_the_new_one_joins_late() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}
    play.told(StepPhase.RUNNING, 1)
    assert not play.round.phase.is_final
    play.tell(arrived(0))
    play.tell(seen(0, 1))
    assert play.round.phase is Phase.DONE


def test_how_long_they_wait_is_the_gangs_own_wish() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/hold": "5s"}
    play = Play([builders.member(index, annotations=annotations) for index in range(2)], decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), after=5.0)
    assert play.round.phase is Phase.RELEASING


def test_one_that_never_comes_back_leaves_the_gang_degraded() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    play.tell(after=LIMITS.hold_for_recreated)
    play.told(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.recreated)
    assert play.round.phase is Phase.DEGRADED
    assert [(each.member, each.reason) for each in outcome.failures(play.round)] == [("train/0", "NotReplaced")]


def test_an_old_pod_that_does_not_go_fails_the_round_and_lets_the_others_go() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.absence - 1.0)
    assert play.round.phase is Phase.STOPPING
    play.wanted(Stop)
    play.tell(after=1.0)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "OldNotGone")
    assert uid(1) in pods(play.wanted(Abort))
    assert play.wanted(Release) == []


@pytest.mark.parametrize("phase", [StepPhase.STUCK, StepPhase.FAILED])
def test_what_an_agent_cannot_restart_is_recreated_once(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.told(phase, 0, reason="CannotKill")
    play.told(phase, 0, reason="CannotKill")
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(0), "CannotKill")]
    play.tell(PodGone(uid(0)))
    play.tell(arrived(0))
    play.tell(StepTold(uid(0, 1), phase))
    assert (play.wanted(Recreate), play.stands(0, 1)) == ([], Stand.FAILED)


def test_an_unusable_device_is_told_to_be_the_reason() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.REFUSED, 0, reason="DeviceNotUsable")
    assert [each.device_failure for each in play.wanted(Recreate)] == [True]


@pytest.mark.parametrize("reason", ["NotOptedIn", "JobBackoffLimit", "LeaderWorkerSetRecreatesGroup", "Whatever"])
def test_a_refusal_that_a_deletion_would_not_mend_fails_the_round(reason: str) -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.told(StepPhase.REFUSED, 0, reason=reason)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, reason)
    assert (play.wanted(Recreate), play.wanted(Release)) == ([], [])
    assert uid(1) in pods(play.wanted(Abort))


@pytest.mark.parametrize("changes", [{"owner": None}, {"annotations": {}}])
def test_nobody_deletes_a_pod_that_must_stay(changes: dict[str, Any]) -> None:
    play = Play([builders.member(0, **changes), builders.member(1)])
    play.told(StepPhase.STUCK, 0, reason="CannotKill")
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.FAILED, [])


def test_a_member_that_does_not_stop_in_time_counts_as_lost() -> None:
    patient = builders.member(0, annotations={**builders.OPTED_IN, "kubemend.io/grace-period": "20s"})
    play = Play([patient, builders.member(1)])
    play.tell(after=LIMITS.stop)
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(1)]
    play.tell(after=20.0)
    assert uid(0) in {each.pod.uid for each in play.wanted(Recreate)}


def test_a_member_of_which_is_told_that_it_goes_on_is_waited_for() -> None:
    """64 GiB of pinned memory take a driver 15 s; deadlines count from the last word."""
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    for _ in range(10):
        play.tell(StepTold(uid(0), StepPhase.STOPPING, "ProcessExiting"), after=LIMITS.stop - 1)
    assert (play.stands(0), play.wanted(Recreate)) == (Stand.STOPPING, [])
    play.tell(after=LIMITS.stop)
    (lost,) = play.wanted(Recreate)
    assert lost.reason == "StopDeadline"
    assert "told last that it is at ProcessExiting" in lost.message


def test_nobody_is_waited_for_without_end_whatever_his_agent_tells() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    begun = play.now
    while play.stands(0) is Stand.STOPPING:
        play.tell(StepTold(uid(0), StepPhase.STOPPING, "ProcessExiting"), after=3.0)
    assert LIMITS.slow <= play.now - begun < LIMITS.slow + 2 * 3.0


def test_a_word_that_says_nothing_new_is_no_sign_of_life() -> None:
    """Each Hello says where a member stands, also of one that does not go on."""
    play = Play(builders.gang(2))
    for _ in range(3):
        play.tell(StepTold(uid(0), StepPhase.STOPPING), after=LIMITS.stop / 2)
    assert play.stands(0) is Stand.LEAVING


@given(silences=st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_only_silence_counts(silences: list[int]) -> None:
    """Whatever the rhythm of its words, a member is lost after the first silence that is too long, and not before."""
    play = Play(builders.gang(2), limits=replace(LIMITS, slow=math.inf, whole=math.inf))
    play.told(StepPhase.STOPPED, 1)
    for silence in silences:
        play.tell(after=silence)
        assert (play.stands(0) is Stand.LEAVING) == (silence >= LIMITS.stop)
        if silence >= LIMITS.stop:
            return
        play.tell(StepTold(uid(0), StepPhase.STOPPING, "DriverFreeing"))


def test_one_that_starts_slowly_after_its_release_is_waited_for_while_it_goes_on() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 1)
    for _ in range(5):
        play.tell(StepTold(uid(0), StepPhase.STOPPED, "Starting"), after=LIMITS.release - 1)
    assert (play.stands(0), play.round.phase) == (Stand.RELEASING, Phase.RELEASING)
    play.told(StepPhase.RUNNING, 0)
    assert play.round.phase is Phase.DONE


def test_one_that_stops_after_all_need_not_be_gone() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.stop)
    play.told(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}
    assert pods(play.wanted(Abort)) == {uid(0)}


def test_a_deletion_is_asked_for_again_until_it_is_seen() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.wanted(Recreate)
    play.tell(after=1.0)
    assert len(play.wanted(Recreate)) == 1
    play.tell(seen(0, deleting=True), after=1.0)
    play.tell(after=1.0)
    assert play.wanted(Recreate) == []


def test_members_of_a_lost_node_are_recreated_when_its_agent_is_away_too() -> None:
    play = Play(builders.gang(2))
    play.tell(NodeTold(NodeName("node-0"), connected=True, lost=True))
    assert play.wanted(Recreate) == []
    play.tell(NodeTold(NodeName("node-0"), connected=False, lost=True))
    assert [(each.pod.uid, each.force) for each in play.wanted(Recreate)] == [(uid(0), False)]


def test_pods_of_a_node_out_of_service_are_deleted_by_force_and_known_to_be_dead() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.wanted(Recreate)
    play.told(StepPhase.STOPPED, 1)
    play.tell(NodeTold(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    assert [each.force for each in play.wanted(Recreate)] == [True]
    assert play.round.blocking == 0
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}


def test_a_pod_that_somebody_deletes_is_waited_for_and_not_deleted_again() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.tell(seen(0, deleting=True))
    play.tell(after=LIMITS.stop)
    assert (play.wanted(Recreate), play.round.phase) == ([], Phase.STOPPING)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepTold(uid(0, 1), StepPhase.STOPPED))
    assert play.round.phase is Phase.RELEASING


def test_a_replacement_may_come_while_its_predecessor_still_ends() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(arrived(0))
    play.tell(StepTold(uid(0, 1), StepPhase.STOPPED))
    assert (play.round.phase, play.wanted(Release)) == (Phase.STOPPING, [])
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, play.round.awaited) == (Phase.RELEASING, {})


def test_a_replacement_is_ordered_to_be_held_once_it_has_a_node() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), seen(0, 1, phase=PodPhase.PENDING, node=NodeName("")))
    play.wanted(Stop)
    play.tell(arrived(0))
    assert pods(play.wanted(Stop)) == {uid(0, 1)}


def test_a_replacement_that_is_held_after_the_release_is_let_go_at_once() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(after=LIMITS.hold_for_recreated)
    play.wanted(Release)
    play.tell(StepTold(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1)}


def test_when_all_are_recreated_none_waits_for_another_to_come() -> None:
    decision = Decision(Kind.RECREATE_ALL, Reason.RECREATION_REQUESTED, "", frozenset({"train/0", "train/1"}))
    play = Play(builders.gang(2), decision=decision, cause=Request(GANG, "me", "new image", NOW, recreate=True))
    assert ([each.reason for each in play.wanted(Recreate)], play.wanted(Stop)) == (["Requested"] * 2, [])
    play.tell(PodGone(uid(0)), arrived(0))
    assert play.round.blocking == 1
    play.tell(PodGone(uid(1)))
    assert play.round.blocking == 0
    play.tell(arrived(1), seen(1, 1), StepTold(uid(0, 1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE


def test_a_replacement_that_never_heard_the_order_runs_in_the_end_and_that_is_told() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.told(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(seen(0, 1), after=LIMITS.hold_for_recreated)
    play.told(StepPhase.RUNNING, 1)
    assert not play.round.phase.is_final
    play.tell(after=LIMITS.release)
    assert play.round.phase is Phase.DONE
    assert _condition(play)["reason"] == "RanUnheld"


def test_a_replacement_that_its_node_does_not_know_yet_is_still_expected() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepTold(uid(0, 1), StepPhase.GONE))
    assert play.stands(0, 1) is Stand.JOINING


def test_one_that_leaves_after_the_release_is_still_replaced() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.stop)
    play.told(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.hold_for_recreated)
    play.told(StepPhase.RUNNING, 1)
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, list(play.round.awaited)) == (Phase.RELEASING, ["train/0"])


def test_one_that_has_failed_is_held_until_the_others_are_released() -> None:
    play = Play([builders.member(0, owner=None), builders.member(1)], limits=Limits(stop=100.0))
    play.told(StepPhase.STOPPED, 0)
    play.tell(FaultTold(uid(0), "Xid79", "gone", needs_recreation=True))
    assert (play.stands(0), play.round.phase) == (Stand.FAILED, Phase.STOPPING)
    play.wanted(Stop)
    play.tell(after=LIMITS.hold / 3)
    assert uid(0) in pods(play.wanted(Stop))
    play.told(StepPhase.STOPPED, 1)
    assert (pods(play.wanted(Release)), pods(play.wanted(Abort))) == ({uid(1)}, {uid(0)})


# ---- more faults, and what was let go ----


def test_another_fault_while_all_stop_is_part_of_the_round() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 1)
    play.tell(FaultTold(uid(0), "Exit1", "exited"), FaultTold(uid(1), "Xid79", "gone", needs_recreation=True))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(1), "Xid79")]
    assert play.round.again == ()


def test_a_fault_of_what_was_released_begins_another_round_right_after() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 0)
    fault = FaultTold(uid(0), "Exit1", "exited again")
    play.tell(fault, after=0.5)
    assert (play.round.phase, play.advance.again) == (Phase.RELEASING, ())
    play.told(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_the_next_round_does_not_wait_long_for_the_last_answers() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    fault = FaultTold(uid(0), "Exit1", "exited again")
    play.tell(fault)
    play.tell(after=LIMITS.resend)
    assert play.advance.again == (fault,)
    assert play.round.phase is Phase.FAILED


def test_after_an_outage_the_next_round_waits_for_agents_that_have_yet_to_come_back() -> None:
    """A new leader hears of a fault from the first agent that has dialed again; the others say where theirs stand."""
    play = taken_over(2)
    play.tell(StepTold(uid(0), StepPhase.RUNNING), NodeTold(builders.member(0).node, connected=True))
    fault = FaultTold(uid(0), "Exit1", "exited", at=play.now)
    play.tell(fault)
    play.tell(after=LIMITS.redial - 1.0)
    assert play.round.phase is Phase.RELEASING
    play.tell(StepTold(uid(1), StepPhase.RUNNING), NodeTold(builders.member(1).node, connected=True))
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_the_next_round_does_not_wait_for_ever_for_agents_that_do_not_come_back() -> None:
    play = taken_over(2)
    play.tell(StepTold(uid(0), StepPhase.RUNNING), NodeTold(builders.member(0).node, connected=True))
    play.tell(FaultTold(uid(0), "Exit1", "exited", at=play.now))
    play.tell(after=LIMITS.redial)
    assert (play.round.phase, play.stands(1)) == (Phase.DEGRADED, Stand.FAILED)


def test_a_late_word_of_a_fault_before_the_stop_begins_nothing() -> None:
    play = Play(builders.gang(2))
    play.now += 1.0
    play.told(StepPhase.STOPPED, 0, 1)
    play.tell(FaultTold(uid(1), "Exit1", "exited", at=NOW + 0.5))
    play.told(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, ())


def test_a_late_word_of_a_device_that_ends_programs_is_decided_on_after_the_round() -> None:
    play = Play(builders.gang(2))
    play.now += 1.0
    play.told(StepPhase.STOPPED, 0, 1)
    fault = FaultTold(uid(1), "Xid79", "gone", needs_recreation=True, at=NOW + 0.5)
    play.tell(fault)
    play.told(StepPhase.RUNNING, 0, 1)
    assert play.advance.again == (fault,)


def test_all_faults_of_what_was_released_are_decided_on_in_the_order_in_which_they_came() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    first, second = FaultTold(uid(1), "Exit42", "exited"), FaultTold(uid(0), "Exit1", "exited")
    play.tell(first)
    play.tell(second)
    play.told(StepPhase.RUNNING, 0, 1)
    assert play.advance.again == (first, second)


def test_one_that_waited_for_its_start_and_fails_after_the_release_is_decided_on_after_the_round() -> None:
    play = Play([builders.member(0), builders.member(1), builders.member(2, phase=PodPhase.PENDING)])
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 0)
    fault = FaultTold(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2), fault, after=1.0)
    play.told(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_one_that_has_come_to_the_gang_since_the_release_is_no_stranger_to_it() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    fault = FaultTold(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2), fault, after=1.0)
    play.told(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_one_that_has_come_and_failed_while_the_others_stop_is_decided_on_after_the_round() -> None:
    play = Play(builders.gang(2))
    fault = FaultTold(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2, phase=PodPhase.FAILED), fault, after=1.0)
    assert play.round.phase is Phase.STOPPING
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_what_befell_a_pod_before_the_round_that_does_not_know_it_is_over() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    play.tell(FaultTold(uid(0, 7), "Exit1", "exited", at=NOW - 1.0))
    play.told(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, ())


@pytest.mark.parametrize("told_late", [False, True], ids=["at once", "after the release"])
def test_one_that_failed_in_the_round_and_fails_again_is_decided_on_after_it(told_late: bool) -> None:
    play = one_cannot_be_started(2)
    fault = FaultTold(uid(0), "Exit1", "what kubelet started exited", at=NOW + 1.0)
    play.now += 2.0
    if not told_late:
        play.tell(fault)
    play.told(StepPhase.STOPPED, 1)
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(1)})
    if told_late:
        play.tell(fault)
    play.told(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DEGRADED, (fault,))


def test_one_that_did_not_answer_and_fails_then_is_decided_on_after_the_round() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)))
    play.told(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    play.tell(after=LIMITS.release)
    assert (play.round.phase, play.stands(1)) == (Phase.RELEASING, Stand.FAILED)
    fault = FaultTold(uid(1), "Exit1", "exited", at=play.now)
    play.tell(fault)
    assert play.advance.again == (fault,)


def test_one_that_exited_with_zero_and_was_started_once_more_may_fail() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.COMPLETED, 0)
    play.told(StepPhase.STOPPED, 1)
    fault = FaultTold(uid(0), "Exit1", "exited", at=NOW + 1.0)
    play.tell(fault, after=1.0)
    play.told(StepPhase.RUNNING, 1)
    assert play.advance.again == (fault,)


def test_the_fault_of_a_pod_that_goes_begins_nothing() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), FaultTold(uid(0), "Exit137", "killed", at=NOW))
    play.tell(seen(0, 1))
    play.told(StepPhase.STOPPED, 1)
    assert play.round.again == ()


def test_a_fault_while_all_stop_that_is_decided_on_afterwards_leaves_the_others_their_time_to_answer() -> None:
    play = one_cannot_be_started(3)
    play.tell(FaultTold(uid(0), "Exit1", "what kubelet started exited", at=NOW))
    play.now += LIMITS.after_fault
    play.told(StepPhase.STOPPED, 1, 2)
    assert play.round.phase is Phase.RELEASING
    play.told(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.RELEASING
    play.tell(after=LIMITS.after_fault)
    assert (play.round.phase, len(play.advance.again)) == (Phase.DEGRADED, 1)


def test_one_that_let_go_by_itself_and_fails_before_the_release_is_decided_on_after_the_round() -> None:
    play = Play(builders.gang(2))
    play.now += 5.0
    play.told(StepPhase.STOPPED, 0, 1)
    fault = FaultTold(uid(0), "Exit1", "exited", at=NOW + 4.0)
    play.tell(StepTold(uid(0), StepPhase.SELF_RELEASED, "HoldTimeout"), fault)
    play.told(StepPhase.RUNNING, 1)
    assert play.advance.again == (fault,)


def test_a_pod_that_fails_between_the_decision_and_the_begin_is_recreated() -> None:
    play = Play([builders.member(0), builders.member(1, phase=PodPhase.FAILED)])
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(1), "PodFailed")]


def test_a_member_that_was_let_go_too_early_fails_the_round_and_begins_another() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0)
    play.told(StepPhase.SELF_RELEASED, 0, reason="HoldTimeout")
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "SelfReleased")
    assert [(each.pod, each.code) for each in play.advance.again] == [(uid(0), "SelfReleased")]
    assert play.wanted(Release) == []
    assert _condition(play)["reason"] == "RanUnheld"


def test_a_round_that_a_former_leader_gave_up_is_given_up() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.SELF_RELEASED, 0, reason="Aborted")
    assert (play.round.phase, play.round.reason, play.advance.again) == (Phase.FAILED, "Aborted", ())


def test_a_member_that_let_go_by_itself_after_the_release_runs_and_that_is_told() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 0)
    play.told(StepPhase.SELF_RELEASED, 1, reason="HoldTimeout")
    assert play.round.phase is Phase.DONE
    assert (_condition(play)["status"], _condition(play)["reason"]) == ("False", "RanUnheld")


def test_who_does_not_run_after_the_release_leaves_the_gang_degraded() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0, 1)
    play.told(StepPhase.RUNNING, 0)
    play.tell(after=LIMITS.release)
    assert play.round.phase is Phase.DEGRADED
    assert [each.reason for each in outcome.failures(play.round)] == ["NoAnswer"]
    assert uid(1) in pods(play.wanted(Abort))


def test_a_round_that_is_taken_back_lets_all_go() -> None:
    play = Play(builders.gang(2))
    play.told(StepPhase.STOPPED, 0)
    play.tell(Cancelled("deleted"))
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "Cancelled")
    assert pods(play.wanted(Abort)) == {uid(0), uid(1)}


def test_a_round_that_is_being_released_is_not_taken_back() -> None:
    play = Play(builders.gang(1))
    play.told(StepPhase.STOPPED, 0)
    play.tell(Cancelled("deleted"))
    assert play.round.phase is Phase.RELEASING


def test_what_is_over_stays_over() -> None:
    play = Play(builders.gang(1))
    play.told(StepPhase.STOPPED, 0)
    play.told(StepPhase.RUNNING, 0)
    over = play.round
    play.effects.clear()
    play.told(StepPhase.FAILED, 0)
    assert (play.round, play.effects) == (over, [])


def test_no_round_lasts_longer_than_it_may() -> None:
    play = Play(builders.gang(2), limits=Limits(stop=1e6, whole=100.0))
    play.tell(after=100.0)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "Timeout")


# ---- one after another ----


def rolling(size: int, at_a_time: int) -> Play:
    return Play(builders.gang(size), cause=Request(GANG, "me", "new weights", NOW, max_unavailable=at_a_time))


def test_a_rolling_round_has_so_many_away_at_a_time() -> None:
    play = rolling(5, 2)
    assert pods(play.wanted(Stop)) == {uid(0), uid(1)}
    play.told(StepPhase.STOPPED, 0)
    assert (pods(play.wanted(Release)), play.wanted(Stop)) == ({uid(0)}, [])
    play.told(StepPhase.RUNNING, 0)
    assert pods(play.wanted(Stop)) == {uid(2)}
    for index in (1, 2, 3, 4):
        play.told(StepPhase.STOPPED, index)
        play.told(StepPhase.RUNNING, index)
    assert play.round.phase is Phase.DONE
    assert _condition(play)["reason"] == "Rolling"


def test_a_rolling_round_begins_no_more_after_a_failure() -> None:
    play = rolling(3, 1)
    play.told(StepPhase.REFUSED, 0, reason="NotOptedIn")
    assert (play.round.phase, pods(play.wanted(Stop))) == (Phase.DEGRADED, {uid(0)})
    assert play.stands(1) is Stand.WAITING


def test_a_rolling_round_recreates_who_cannot_stay_and_waits_for_the_new_one() -> None:
    play = rolling(2, 1)
    play.told(StepPhase.STUCK, 0)
    play.tell(PodGone(uid(0)), arrived(0))
    assert (play.stands(0, 1), play.stands(1)) == (Stand.JOINING, Stand.WAITING)
    play.tell(seen(0, 1))
    assert (play.stands(0, 1), play.stands(1)) == (Stand.RUNNING, Stand.STOPPING)


# ---- another leader ----


def resumed(
    members: Iterable[Member],
    *told: StepTold,
    decision: Decision = IN_PLACE,
    cause: Cause | None = None,
    **changes: Any,
) -> Advance:
    begun = machine.begin(
        REF,
        cause=cause or builders.fault(),
        decision=decision,
        members=builders.gang(2),
        nodes=builders.nodes(2),
        now=NOW,
    )
    kept = status.parse(status.render(begun.round), created_at=NOW)
    nodes = builders.nodes(2)
    return machine.resume(REF, kept=kept, members=members, nodes=nodes, told=told, now=NOW + 5.0, **changes)


def taken_over(size: int) -> Play:
    """A round as a new leader has it, to whom no agent has come yet."""
    play = Play(builders.gang(size))
    play.take(resumed(play.members.values()))
    play.now, play.effects = NOW + 5.0, []
    return play


def test_a_new_leader_goes_on_where_the_agents_stand() -> None:
    advance = resumed(builders.gang(2), StepTold(uid(0), StepPhase.STOPPED))
    assert (advance.round.phase, advance.round.started_at) == (Phase.STOPPING, NOW)
    assert advance.round.members[uid(0)].stand is Stand.STOPPED
    after = machine.advance(advance.round, [StepTold(uid(1), StepPhase.STOPPED)], now=NOW + 5.0)
    assert pods(each for each in after.effects if isinstance(each, Release)) == {uid(0), uid(1)}


def test_what_fails_between_a_release_and_the_new_leader_is_decided_on_after_the_round() -> None:
    advance = resumed(builders.gang(2), StepTold(uid(0), StepPhase.RUNNING))
    fault = FaultTold(uid(0), "Exit1", "exited", at=NOW + 4.0)
    after = machine.advance(advance.round, [fault, StepTold(uid(1), StepPhase.RUNNING)], now=NOW + 6.0)
    assert (after.round.phase, after.again) == (Phase.DONE, (fault,))


def test_one_that_was_released_proves_that_all_were_stopped() -> None:
    advance = resumed(builders.gang(2), StepTold(uid(0), StepPhase.RUNNING))
    assert advance.round.phase is Phase.RELEASING
    assert pods(each for each in advance.effects if isinstance(each, Release)) == {uid(1)}


def test_pods_newer_than_the_round_are_held_and_no_other_of_their_slot_is_deleted() -> None:
    new = builders.member(0, generation=5)
    advance = resumed([new, builders.member(1)], decision=RECREATE_0)
    assert [each for each in advance.effects if isinstance(each, Recreate)] == []
    assert [each.pods for each in advance.effects if isinstance(each, Stop)] == [
        {new.pod.uid: OrderKind.HOLD},
        {uid(1): OrderKind.RESTART},
    ]


def test_a_slot_whose_pod_is_gone_is_still_waited_for() -> None:
    advance = resumed([builders.member(1)], StepTold(uid(1), StepPhase.STOPPED), decision=RECREATE_0)
    assert (advance.round.phase, list(advance.round.awaited)) == (Phase.STOPPING, ["train/0"])


def test_a_pod_that_ends_beside_its_replacement_still_blocks() -> None:
    everyone = [builders.member(0, deleting=True), builders.member(0, generation=5), builders.member(1)]
    advance = resumed(everyone, StepTold(uid(1), StepPhase.STOPPED), StepTold(uid(0, 5), StepPhase.STOPPED))
    assert (advance.round.phase, advance.round.blocking) == (Phase.STOPPING, 1)


def test_a_new_leader_deletes_no_second_pod_of_a_slot_whose_first_one_leaves() -> None:
    advance = resumed([builders.member(0, deleting=True), builders.member(1)])
    after = machine.advance(advance.round, [PodGone(uid(0)), arrived(0)], now=NOW + 6.0)
    fault = FaultTold(uid(0, 1), "Xid79", "gone", needs_recreation=True)
    after = machine.advance(after.round, [fault], now=NOW + 7.0)
    assert [each for each in after.effects if isinstance(each, Recreate)] == []
    assert advance.round.replaced == {"train/0"}


def test_lost_nodes_are_seen_by_the_new_leader_itself() -> None:
    advance = resumed(builders.gang(2), decision=IN_PLACE)
    assert advance.round.members[uid(0)].stand is Stand.STOPPING
    nodes = {**builders.nodes(2), NodeName("node-0"): NodeView(NodeName("node-0"), ready=None)}
    kept = status.parse(status.render(advance.round), created_at=NOW)
    advance = machine.resume(REF, kept=kept, members=builders.gang(2), nodes=nodes, now=NOW)
    assert advance.round.members[uid(0)].stand is Stand.LEAVING


def test_a_leader_whose_clock_is_behind_still_counts_forward() -> None:
    advance = resumed(builders.gang(2))
    kept = status.parse(status.render(advance.round), created_at=NOW)
    earlier = machine.resume(REF, kept=kept, members=builders.gang(2), nodes={}, now=NOW - 600.0)
    assert earlier.round.started_at == NOW - 600.0
    assert earlier.wake_at == NOW - 600.0 + LIMITS.resend


def _condition(play: Play) -> dict[str, str]:
    conditions: list[dict[str, str]] = status.render(play.round)["conditions"]
    return {each["type"]: each for each in conditions}[status.HELD_TOGETHER]


def test_a_gang_without_members_ends_at_once() -> None:
    play = Play([])
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "MembersGone")


def test_no_round_is_begun_on_a_decision_against_it() -> None:
    with pytest.raises(AssertionError, match="begins no round"):
        Play(builders.gang(1), decision=replace(IN_PLACE, kind=Kind.OBSERVE))
