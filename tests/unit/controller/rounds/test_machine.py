"""The round machine, rule by rule. Its behaviour in a hostile environment is tested in test_simulation."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.hub import connection, endpoint
from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.model.faults import Cause, Request
from kubemend.controller.model.members import Member, NodeName, NodeView, Owner, PodPhase, PodUid
from kubemend.controller.model.rounds import (
    Abort,
    Cancelled,
    Effect,
    FaultReported,
    MemberDropped,
    MemberLeft,
    MemberSeen,
    NodeChanged,
    PodGone,
    Record,
    Recreate,
    Release,
    RoundEvent,
    RoundRef,
    StepResult,
    Stop,
)
from kubemend.controller.rounds import machine, outcome, status
from kubemend.controller.rounds.states import Advance, Limits, MemberPhase, Phase
from tests.unit.controller import builders
from tests.unit.controller.builders import GANG, NOW

REF = RoundRef("team", "train-4", GANG, 4)
IN_PLACE = Decision(Kind.IN_PLACE, Reason.MEMBER_FAILED)
RECREATE_0 = Decision(Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST, "", frozenset({"train/0"}))
LIMITS = Limits()


class Play:
    """One round under way: send it events, and read the effects since the last read."""

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

    def reported(self, phase: StepPhase, *indexes: int, reason: str = "", **more: Any) -> None:
        self.tell(*(StepResult(uid(index), phase, reason, **more) for index in indexes))

    def wanted(self, kind: type[Effect]) -> list[Any]:
        """Return and forget the effects of this kind."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def stands(self, index: int, generation: int = 0) -> MemberPhase:
        return self.round.members[uid(index, generation)].phase


def one_cannot_be_started(size: int) -> Play:
    """Return a round whose first member is dead, cannot be restarted, and must not be recreated."""
    play = Play([builders.member(0, owner=None), *builders.gang(size)[1:]])
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.FAILED, 0, reason="StartFailed")
    assert (play.round.phase, play.stands(0)) == (Phase.STOPPING, MemberPhase.FAILED)
    return play


def uid(index: int, generation: int = 0) -> PodUid:
    return PodUid(f"uid-{index}-{generation}")


def pods(effects: Iterable[Stop | Release | Abort]) -> set[PodUid]:
    return {pod for effect in effects for pod in effect.pods}


def seen(index: int, generation: int = 0, **changes: Any) -> MemberSeen:
    return MemberSeen(builders.member(index, generation=generation, **changes))


def arrived(index: int, generation: int = 1) -> MemberSeen:
    return seen(index, generation, phase=PodPhase.PENDING)


# ---- without failures ----


def test_all_members_stop_then_release_then_done() -> None:
    play = Play(builders.gang(3))
    stops = play.wanted(Stop)
    assert pods(stops) == {uid(0), uid(1), uid(2)}
    assert {kind for stop in stops for kind in stop.pods.values()} == {OrderKind.RESTART}
    play.reported(StepPhase.STOPPED, 0, 1)
    assert (play.round.phase, play.effects) == (Phase.STOPPING, [])
    play.reported(StepPhase.STOPPED, 2)
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(0), uid(1), uid(2)})
    play.reported(StepPhase.RUNNING, 0, 1, 2)
    assert (play.round.phase, play.effects) == (Phase.DONE, [Record()])
    assert (play.advance.wake_at, play.advance.again) == (None, ())


def test_member_that_says_to_run_before_any_release_releases_no_other() -> None:
    """Its node may be compromised: the others' old containers run."""
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 0)

    assert play.wanted(Release) == []
    assert play.round.phase is Phase.FAILED
    assert [again.pod for again in play.advance.again] == [uid(0)]  # within the gang's budget


def test_release_waits_for_deaths_and_not_for_starts() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, reason="NotStarted")
    assert play.wanted(Release) == []
    play.reported(StepPhase.STOPPED, 1, reason="NotStarted")
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(0), uid(1)})
    play.reported(StepPhase.RUNNING, 0, 1)
    assert play.round.phase is Phase.DONE
    assert all(one.late for one in play.round.members.values())


def test_member_that_starts_after_its_death_was_reported_keeps_the_time_of_its_death() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, reason="NotStarted", seconds={"stop": 0.1})
    before = play.round.members[uid(0)]
    play.tell(
        StepResult(uid(0), StepPhase.STOPPED, seconds={"stop": 0.1, "start": 0.2}, unheld_seconds=0.01), after=0.3
    )
    after = play.round.members[uid(0)]
    assert (after.stopped, after.since, after.late) == (before.stopped, before.since, True)
    assert (after.seconds["start"], after.unheld_seconds) == (0.2, 0.01)


def test_member_that_fails_after_its_death_is_recreated_while_the_others_wait() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, reason="NotStarted")
    play.reported(StepPhase.FAILED, 0, reason="Failed")
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(0)]
    play.reported(StepPhase.STOPPED, 1)
    assert play.wanted(Release) == []


def test_member_that_fails_to_start_after_the_release_leaves_the_others_running() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1, reason="NotStarted")
    play.reported(StepPhase.RUNNING, 1)
    play.reported(StepPhase.FAILED, 0, reason="Failed", detail="the runtime refuses to start it")
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.DEGRADED, [])
    assert [each.member for each in outcome.failures(play.round)] == ["train-0-0"]


def test_members_of_one_node_share_messages() -> None:
    play = Play([builders.member(index, node=NodeName("node-0")) for index in range(3)])
    assert [len(stop.pods) for stop in play.wanted(Stop)] == [3]
    play.reported(StepPhase.STOPPED, 0, 1, 2)
    assert [len(release.pods) for release in play.wanted(Release)] == [3]


def test_only_unanswered_orders_are_repeated() -> None:
    play = Play(builders.gang(2))
    play.wanted(Stop)
    play.reported(StepPhase.STOPPED, 0)
    assert play.advance.wake_at == NOW + LIMITS.resend
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.reported(StepPhase.STOPPED, 1)
    play.wanted(Release)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Release)) == {uid(0)}


def test_large_round_repeats_orders_less_often() -> None:
    play = Play(builders.gang(2500))
    play.wanted(Stop)
    play.reported(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.resend)
    play.tell(after=LIMITS.resend)
    assert play.effects == []
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Stop)) == {uid(index) for index in range(1, 2500)}


def test_large_round_renews_holds_in_time() -> None:
    limits = Limits(hold=6.0)
    assert limits.resend_interval(members=2500) > limits.hold / 3
    play = Play(builders.gang(2500), limits=limits)
    play.wanted(Stop)
    play.reported(StepPhase.STOPPED, 0)
    play.tell(after=limits.hold / 3)
    assert len(pods(play.wanted(Stop))) == 2500


@pytest.mark.parametrize("phase", [MemberPhase.STOPPING, MemberPhase.RELEASING])
def test_silent_member_of_a_large_round_gets_its_order_three_times_before_it_counts_as_lost(phase: MemberPhase) -> None:
    limits = Limits(stop=1.0, release=1.0)
    assert limits.silence(1.0, members=2500) == 7.5
    play = Play(builders.gang(2500), limits=limits)
    releases = phase is MemberPhase.RELEASING
    if releases:
        play.reported(StepPhase.STOPPED, *range(2500))
    play.reported(StepPhase.RUNNING if releases else StepPhase.STOPPED, *range(1, 2500))
    order = Release if releases else Stop
    assert uid(0) in pods(play.wanted(order))
    times = 1
    for _ in range(7):
        play.tell(after=1.0)
        times += uid(0) in pods(play.wanted(order))
        assert play.stands(0) is phase
    assert times == 3
    play.tell(after=1.0)  # deadlines are checked once in a second
    assert play.stands(0) is (MemberPhase.FAILED if releases else MemberPhase.LEAVING)


def test_holds_are_renewed_in_time() -> None:
    play = Play(builders.gang(2), limits=Limits(stop=100.0))
    play.reported(StepPhase.STOPPED, 0)
    play.wanted(Stop)
    play.tell(after=9.0)
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.tell(after=1.0)
    assert pods(play.wanted(Stop)) == {uid(0), uid(1)}
    play.tell(after=9.0)
    assert pods(play.wanted(Stop)) == {uid(1)}


def test_reconnected_node_gets_orders_at_once() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.wanted(Stop)
    play.tell(NodeChanged(NodeName("node-1"), connected=True))
    assert play.wanted(Stop) == []
    play.tell(NodeChanged(NodeName("node-1"), connected=False), NodeChanged(NodeName("node-1"), connected=True))
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.tell(NodeChanged(NodeName("node-0"), connected=False), NodeChanged(NodeName("node-0"), connected=True))
    assert pods(play.wanted(Stop)) == {uid(0)}, "the agent may have lost its order, and holds it longer"


def test_disconnected_agent_gets_time_to_reconnect() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(NodeChanged(NodeName("node-0"), connected=False))
    play.tell(after=LIMITS.stop + LIMITS.reconnect - 1.0)
    assert play.wanted(Recreate) == []
    play.tell(NodeChanged(NodeName("node-0"), connected=True))
    play.tell(after=LIMITS.stop - 1.0)
    assert play.wanted(Recreate) == []
    play.tell(after=1.0)
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(0)]


def test_completion_is_neither_failure_nor_restart() -> None:
    play = Play([builders.member(0, phase=PodPhase.SUCCEEDED), *builders.gang(3)[1:]])
    assert pods(play.wanted(Stop)) == {uid(1), uid(2)}
    play.reported(StepPhase.COMPLETED, 1)
    play.reported(StepPhase.STOPPED, 2)
    assert pods(play.wanted(Release)) == {uid(2)}
    play.reported(StepPhase.RUNNING, 2)
    assert (play.round.phase, _condition(play)["reason"]) == (Phase.DONE, "AllHeld")


def test_pod_of_a_completed_member_may_go() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.COMPLETED, 0)
    play.tell(PodGone(uid(0)))
    play.reported(StepPhase.STOPPED, 1)
    assert pods(play.wanted(Release)) == {uid(1)}


def test_pod_that_replaces_none_is_held_while_others_stop_and_ignored_after() -> None:
    """Its gang has grown."""
    play = Play(builders.gang(2))
    play.wanted(Stop)
    play.tell(arrived(2, 0))
    assert [stop.pods for stop in play.wanted(Stop)] == [{uid(2): OrderKind.HOLD}]
    play.reported(StepPhase.STOPPED, 0, 1)
    assert pods(play.wanted(Release)) == {uid(0), uid(1), uid(2)}
    play.tell(arrived(3, 0))
    assert uid(3) not in play.round.members


def test_pending_member_is_held_but_not_awaited() -> None:
    play = Play([builders.member(0, phase=PodPhase.PENDING), builders.member(1)])
    assert [stop.pods for stop in play.wanted(Stop)] == [{uid(0): OrderKind.HOLD}, {uid(1): OrderKind.RESTART}]
    play.reported(StepPhase.STOPPED, 1)
    assert pods(play.wanted(Release)) == {uid(0), uid(1)}
    play.reported(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.DONE


def test_release_with_two_pending_pods_of_one_slot_forgets_both() -> None:
    deleted = builders.member(2, phase=PodPhase.PENDING, deleting=True)
    replacement = builders.member(2, generation=1, phase=PodPhase.PENDING, node=NodeName(""))
    play = Play([*builders.gang(2), deleted, replacement])
    play.reported(StepPhase.STOPPED, 0, 1)
    assert pods(play.wanted(Release)) == {uid(0), uid(1), uid(2)}
    assert set(play.round.members) == set(play.round.newest.values()) == {uid(0), uid(1)}
    play.reported(StepPhase.RUNNING, 0, 1)
    assert play.round.phase is Phase.DONE


# ---- members that are replaced ----


def test_lost_member_is_recreated_while_others_wait() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    assert pods(play.wanted(Stop)) == {uid(1)}
    assert [effect.pod.uid for effect in play.wanted(Recreate)] == [uid(0)]
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, list(play.round.awaited)) == (Phase.STOPPING, ["train/0"])
    play.tell(arrived(0))
    assert [stop.pods for stop in play.wanted(Stop)] == [{uid(0, 1): OrderKind.HOLD}]
    assert play.effects == []
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1), uid(1)}
    play.tell(StepResult(uid(0, 1), StepPhase.RUNNING), StepResult(uid(1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE
    assert status.render(play.round)["members"] == {
        "total": 2,
        "inPlace": 1,
        "recreated": 1,
        "stopped": 2,
        "running": 2,
        "failed": 0,
    }


def test_members_wait_for_replacement_only_for_a_time() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}
    play.reported(StepPhase.RUNNING, 1)
    assert not play.round.phase.is_final
    play.tell(arrived(0))
    play.tell(seen(0, 1))
    assert play.round.phase is Phase.DONE


OF_A_RAY_CLUSTER = Owner("ray.io", "RayCluster", "ray", "uid-ray")


def named_at_random(index: int, *, generation: int = 0, owner: Owner = OF_A_RAY_CLUSTER, **changes: Any) -> Member:
    """Return a member whose slot is its pod's name: its replacement's slot is another."""
    slot = builders.member(index, generation=generation).pod.name
    return builders.member(index, generation=generation, owner=owner, slot=slot, **changes)


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_pod_of_another_name_replaces_one_of_the_same_owner(comes_first: bool) -> None:
    play = Play([named_at_random(0), named_at_random(1)])
    play.reported(StepPhase.STOPPED, 1)
    newcomer = MemberSeen(named_at_random(0, generation=1))
    play.tell(MemberSeen(named_at_random(0, deleting=True)))
    play.tell(*((newcomer, PodGone(uid(0))) if comes_first else (PodGone(uid(0)), newcomer)))
    assert play.round.awaited == {}
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1), uid(1)}
    play.tell(StepResult(uid(0, 1), StepPhase.RUNNING), StepResult(uid(1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE
    assert [one.member.pod.uid for one in outcome.current(play.round)] == [uid(0, 1), uid(1)]


def test_new_pod_with_a_random_name_takes_the_place_of_one_that_is_gone_before_one_that_leaves() -> None:
    play = Play([named_at_random(index) for index in range(3)])
    play.tell(*(MemberSeen(named_at_random(index, deleting=True)) for index in range(2)), PodGone(uid(1)))
    play.tell(MemberSeen(named_at_random(0, generation=1)))
    assert not play.round.awaited
    assert set(play.round.newest.values()) == {uid(0), uid(0, 1), uid(2)}


@pytest.mark.parametrize(
    "stranger",
    [
        named_at_random(2, owner=Owner("ray.io", "RayCluster", "other", "uid-other")),
        named_at_random(2, owner=Owner("apps", "StatefulSet", "ray", "uid-ray")),
    ],
    ids=["of another owner", "of an owner whose pods keep their names"],
)
def test_a_pod_that_replaces_none_leaves_the_place_of_the_gone_one(stranger: Member) -> None:
    assert stranger.owner is not None
    play = Play([named_at_random(0, owner=replace(stranger.owner, uid="uid-ray")), named_at_random(1)])
    play.tell(MemberSeen(named_at_random(0, deleting=True)), PodGone(uid(0)), MemberSeen(stranger))
    assert [*play.round.awaited] == ["train-0-0"]


def test_hold_annotation_sets_wait_for_replacement() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/hold": "5s"}
    play = Play([builders.member(index, annotations=annotations) for index in range(2)], decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), after=5.0)
    assert play.round.phase is Phase.RELEASING


@pytest.mark.parametrize(("whole", "longest"), [(900.0, 885.0), (10.0, 5.0)])
def test_hold_longer_than_the_round_ends_before_it(whole: float, longest: float) -> None:
    gang = [builders.member(i, annotations={**builders.OPTED_IN, "kubemend.io/hold": "20m"}) for i in (0, 1)]
    play = Play(gang, decision=RECREATE_0, limits=Limits(whole=whole))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    play.tell(after=longest - 1.0)
    assert play.wanted(Release) == []
    play.tell(after=1.0)
    assert pods(play.wanted(Release)) == {uid(1)}
    play.reported(StepPhase.RUNNING, 1)
    play.tell(after=whole - longest)
    assert (play.round.phase, play.stands(1)) == (Phase.DEGRADED, MemberPhase.RUNNING)


def test_member_that_its_owner_has_dropped_is_not_awaited() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(seen(1, deleting=True))
    play.tell(MemberDropped(uid(1)))
    assert (play.round.phase, play.stands(1)) == (Phase.STOPPING, MemberPhase.LEAVING), "its old containers may run"
    play.tell(PodGone(uid(1)))
    assert (play.round.phase, [*play.round.awaited]) == (Phase.STOPPING, ["train/1"])
    play.tell(MemberDropped(uid(1)))
    assert (play.round.phase, [*play.round.awaited]) == (Phase.RELEASING, [])
    play.reported(StepPhase.RUNNING, 0)
    assert play.round.phase is Phase.DONE


def test_member_that_has_a_replacement_already_is_not_dropped() -> None:
    play = Play(builders.gang(2))
    play.tell(PodGone(uid(1)), arrived(1), MemberDropped(uid(1)))
    assert play.stands(1, 1) is MemberPhase.JOINING
    assert play.round.newest["train/1"] == uid(1, 1)


def test_missing_replacement_leaves_gang_degraded() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)))
    play.tell(after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.recreated)
    assert play.round.phase is Phase.DEGRADED
    assert [(each.member, each.reason) for each in outcome.failures(play.round)] == [("train/0", "NotReplaced")]


def test_old_pod_that_stays_fails_round_and_releases_others() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.absence - 1.0)
    assert play.round.phase is Phase.STOPPING
    play.wanted(Stop)
    play.tell(after=1.0)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "OldNotGone")
    assert uid(1) in pods(play.wanted(Abort))
    assert play.wanted(Release) == []


@pytest.mark.parametrize("phase", [StepPhase.STUCK, StepPhase.FAILED])
def test_member_refused_by_agent_is_recreated_once(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.reported(phase, 0, reason="CannotKill")
    play.reported(phase, 0, reason="CannotKill")
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(0), "CannotKill")]
    play.tell(PodGone(uid(0)))
    play.tell(arrived(0))
    play.tell(StepResult(uid(0, 1), phase))
    assert (play.wanted(Recreate), play.stands(0, 1)) == ([], MemberPhase.FAILED)


@pytest.mark.parametrize("phase", [StepPhase.REFUSED, StepPhase.FAILED])
def test_unusable_device_is_the_reason_of_recreation(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.reported(phase, 0, reason="DeviceNotUsable")
    assert [each.device_failure for each in play.wanted(Recreate)] == [True]


@pytest.mark.parametrize("reason", ["NotOptedIn", "JobBackoffLimit", "LeaderWorkerSetRecreatesGroup", "Whatever"])
def test_refusal_unfixable_by_deletion_fails_round(reason: str) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.REFUSED, 0, reason=reason)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, reason)
    assert (play.wanted(Recreate), play.wanted(Release)) == ([], [])
    assert uid(1) in pods(play.wanted(Abort))


def test_replacement_of_a_pod_that_another_client_deleted_is_not_deleted() -> None:
    play = Play(builders.gang(2))
    play.tell(seen(0, deleting=True), PodGone(uid(0)), arrived(0))
    for phase in (StepPhase.STOPPED, StepPhase.FAILED):
        play.tell(StepResult(uid(0, 1), phase))
    assert (play.stands(0, 1), play.wanted(Recreate)) == (MemberPhase.FAILED, [])


@pytest.mark.parametrize("changes", [{"owner": None}, {"annotations": {}}])
def test_protected_pod_is_never_deleted(changes: dict[str, Any]) -> None:
    play = Play([builders.member(0, **changes), builders.member(1)])
    play.reported(StepPhase.STUCK, 0, reason="CannotKill")
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.FAILED, [])


@pytest.mark.parametrize("changes", [{"owner": None}, {"annotations": {}}])
def test_pod_that_must_stay_since_its_deletion_was_requested_fails_the_round(changes: dict[str, Any]) -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(0)]
    play.tell(seen(0, **changes), after=LIMITS.resend)
    assert (play.round.phase, play.round.reason, play.wanted(Recreate)) == (Phase.FAILED, "NodeLost", [])
    assert "its pod is not deleted" in play.round.detail


def test_pod_that_has_lost_its_owner_since_its_deletion_is_not_deleted_by_force() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    assert len(play.wanted(Recreate)) == 1
    play.tell(seen(0, owner=None, deleting=True))
    play.tell(NodeChanged(NodeName("node-0"), connected=False, out_of_service=True), after=LIMITS.resend)
    assert (play.stands(0), play.wanted(Recreate)) == (MemberPhase.LEAVING, [])
    play.tell(PodGone(uid(0)))
    play.reported(StepPhase.STOPPED, 1)
    assert play.round.phase is Phase.RELEASING


def test_member_that_does_not_stop_in_time_is_lost() -> None:
    patient = builders.member(0, annotations={**builders.OPTED_IN, "kubemend.io/grace-period": "20s"})
    play = Play([patient, builders.member(1)])
    play.tell(after=LIMITS.stop)
    assert [each.pod.uid for each in play.wanted(Recreate)] == [uid(1)]
    play.tell(after=20.0)
    assert uid(0) in {each.pod.uid for each in play.wanted(Recreate)}


def test_member_with_reports_of_progress_is_waited_for() -> None:
    """64 GiB of pinned memory take a driver 15 s; deadlines count from the last report."""
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    for _ in range(10):
        play.tell(StepResult(uid(0), StepPhase.STOPPING, "ProcessExiting"), after=LIMITS.stop - 1)
    assert (play.stands(0), play.wanted(Recreate)) == (MemberPhase.STOPPING, [])
    play.tell(after=LIMITS.stop)
    (lost,) = play.wanted(Recreate)
    assert lost.reason == "StopDeadline"
    assert "the last step that its agent reported is ProcessExiting" in lost.message


def test_member_has_its_time_to_stop_also_if_slow_ones_have_less() -> None:
    play = Play(builders.gang(2), limits=Limits(slow=1.0))
    play.tell(after=LIMITS.stop - 1.0)
    assert play.stands(0) is MemberPhase.STOPPING


def test_late_lost_connection_in_slow_stop_gets_reconnect_time() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    for _ in range(10):
        play.tell(StepResult(uid(0), StepPhase.STOPPING, "DriverFreeing"), after=LIMITS.stop - 1)
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=False))
    play.tell(after=LIMITS.stop + LIMITS.reconnect - 1)
    assert play.stands(0) is MemberPhase.STOPPING
    play.tell(after=1.0)
    assert play.stands(0) is MemberPhase.LEAVING


def test_reports_of_progress_do_not_extend_wait_indefinitely() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    begun = play.now
    while play.stands(0) is MemberPhase.STOPPING:
        play.tell(StepResult(uid(0), StepPhase.STOPPING, "ProcessExiting"), after=3.0)
    assert LIMITS.slow <= play.now - begun < LIMITS.slow + 2 * 3.0


def test_member_has_the_grace_period_of_the_request_to_stop() -> None:
    """Its program may write a checkpoint for longer than any other step takes."""
    limits = Limits(grace=2 * LIMITS.slow, whole=4 * LIMITS.slow)
    play = Play(builders.gang(2), cause=Request(GANG, "me", "new weights", NOW), limits=limits)
    play.reported(StepPhase.STOPPED, 1)
    while play.now < NOW + 2 * LIMITS.slow:
        play.tell(StepResult(uid(0), StepPhase.STOPPING, "ProcessExiting"), after=3.0)
        assert play.stands(0) is MemberPhase.STOPPING
    play.reported(StepPhase.STOPPED, 0)
    assert play.round.phase is Phase.RELEASING


def test_repeated_report_is_no_progress() -> None:
    """Each Hello has a member's phase, even if it makes no progress."""
    play = Play(builders.gang(2))
    for _ in range(3):
        play.tell(StepResult(uid(0), StepPhase.STOPPING), after=LIMITS.stop / 2)
    assert play.stands(0) is MemberPhase.LEAVING


@given(silences=st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_only_silence_counts(silences: list[int]) -> None:
    """With any rhythm of reports, a member is lost after the first silence that is too long, and not before."""
    play = Play(builders.gang(2), limits=replace(LIMITS, slow=math.inf, whole=math.inf))
    play.reported(StepPhase.STOPPED, 1)
    for silence in silences:
        play.tell(after=silence)
        assert (play.stands(0) is MemberPhase.LEAVING) == (silence >= LIMITS.stop)
        if silence >= LIMITS.stop:
            return
        play.tell(StepResult(uid(0), StepPhase.STOPPING, "DriverFreeing"))


def test_lost_member_is_reported_with_its_last_step_and_detail() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(StepResult(uid(0), StepPhase.STOPPING, "DriverFreeing", detail="12.0 GiB left"))
    play.tell(after=LIMITS.stop)
    (recreated,) = play.wanted(Recreate)
    assert "the last step that its agent reported is DriverFreeing (12.0 GiB left)" in recreated.message


def test_slow_start_with_progress_after_release_is_waited_for() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 1)
    for _ in range(5):
        play.tell(StepResult(uid(0), StepPhase.STOPPED, "Starting"), after=LIMITS.release - 1)
    assert (play.stands(0), play.round.phase) == (MemberPhase.RELEASING, Phase.RELEASING)
    play.reported(StepPhase.RUNNING, 0)
    assert play.round.phase is Phase.DONE


def test_member_that_stops_late_need_not_be_gone() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.stop)
    play.reported(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}
    assert pods(play.wanted(Abort)) == {uid(0)}


def test_deletion_is_repeated_until_observed() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.wanted(Recreate)
    play.tell(after=1.0)
    assert len(play.wanted(Recreate)) == 1
    play.tell(seen(0, deleting=True), after=1.0)
    play.tell(after=1.0)
    assert play.wanted(Recreate) == []


def test_members_of_lost_node_without_agent_are_recreated() -> None:
    play = Play(builders.gang(2))
    play.tell(NodeChanged(NodeName("node-0"), connected=True, lost=True))
    assert play.wanted(Recreate) == []
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True))
    assert [(each.pod.uid, each.force) for each in play.wanted(Recreate)] == [(uid(0), False)]


def test_pods_of_out_of_service_node_are_deleted_by_force() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.wanted(Recreate)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    assert {each.force for each in play.wanted(Recreate)} == {True}
    assert play.round.blocking == 0
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(1)}


def test_member_on_a_node_that_goes_out_of_service_before_it_has_stopped_is_deleted_by_force() -> None:
    play = Play(builders.gang(2))
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    assert [(each.pod.uid, each.reason, each.force) for each in play.wanted(Recreate)] == [
        (uid(0), "NodeOutOfService", True)
    ]
    assert play.round.blocking == 1


def test_pod_that_another_client_deletes_on_out_of_service_node_is_deleted_by_force() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(seen(0, deleting=True))
    assert play.wanted(Recreate) == []
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    assert [(each.pod.uid, each.force) for each in play.wanted(Recreate)] == [(uid(0), True)]
    assert play.round.blocking == 0
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert play.round.phase is Phase.RELEASING


def test_round_that_begins_with_a_deleted_pod_on_out_of_service_node_deletes_it_by_force() -> None:
    zero, one = builders.gang(2)
    nodes = {**builders.nodes(2), zero.node: replace(builders.nodes(2)[zero.node], out_of_service=True)}
    begun = machine.begin(
        REF,
        cause=builders.fault(),
        decision=IN_PLACE,
        members=(replace(zero, deleting=True), one),
        nodes=nodes,
        now=NOW,
    )
    assert [(each.pod.uid, each.force) for each in begun.effects if isinstance(each, Recreate)] == [(uid(0), True)]


def test_protected_pod_that_another_client_deletes_on_out_of_service_node_is_awaited() -> None:
    zero, one = builders.gang(2)
    play = Play((replace(zero, owner=None), one))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(seen(0, deleting=True, owner=None))
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    assert (play.wanted(Recreate), play.stands(0)) == ([], MemberPhase.LEAVING)


def test_pod_deleted_by_another_client_is_awaited_not_deleted() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(seen(0, deleting=True))
    play.tell(after=LIMITS.stop)
    assert (play.wanted(Recreate), play.round.phase) == ([], Phase.STOPPING)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert play.round.phase is Phase.RELEASING


def test_replacement_may_come_before_predecessor_ends() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert (play.round.phase, play.wanted(Release)) == (Phase.STOPPING, [])
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, play.round.awaited) == (Phase.RELEASING, {})


def test_replacement_gets_hold_order_once_it_has_node() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), seen(0, 1, phase=PodPhase.PENDING, node=NodeName("")))
    play.wanted(Stop)
    play.tell(arrived(0))
    assert pods(play.wanted(Stop)) == {uid(0, 1)}


def test_orders_to_a_replacement_are_repeated_until_it_runs() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.reported(StepPhase.STOPPED, 1)
    play.wanted(Stop)
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Stop)) == {uid(0, 1)}
    play.tell(after=LIMITS.hold_for_recreated)
    assert pods(play.wanted(Release)) == {uid(0, 1), uid(1)}
    play.reported(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.resend)
    assert pods(play.wanted(Release)) == {uid(0, 1)}


def test_replacement_held_after_release_is_released_at_once() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(after=LIMITS.hold_for_recreated)
    play.wanted(Release)
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert (play.stands(0, 1), pods(play.wanted(Release))) == (MemberPhase.RELEASING, {uid(0, 1)})


def test_recreated_members_do_not_wait_for_one_another() -> None:
    decision = Decision(Kind.RECREATE_ALL, Reason.RECREATION_REQUESTED, "", frozenset({"train/0", "train/1"}))
    play = Play(builders.gang(2), decision=decision, cause=Request(GANG, "me", "new image", NOW, recreate=True))
    assert ([each.reason for each in play.wanted(Recreate)], play.wanted(Stop)) == (["Requested"] * 2, [])
    play.tell(PodGone(uid(0)), arrived(0))
    assert play.round.blocking == 1
    play.tell(PodGone(uid(1)))
    assert play.round.blocking == 0
    play.tell(arrived(1), seen(1, 1), StepResult(uid(0, 1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE


def test_held_replacement_is_released_before_others_that_are_recreated_have_come() -> None:
    decision = Decision(Kind.RECREATE_ALL, Reason.RECREATION_REQUESTED, "", frozenset({"train/0", "train/1"}))
    play = Play(builders.gang(2), decision=decision, cause=Request(GANG, "me", "new image", NOW, recreate=True))
    play.tell(PodGone(uid(0)), PodGone(uid(1)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1)}


def test_members_do_not_wait_for_a_pending_one_once_all_replacements_have_come() -> None:
    play = Play([*builders.gang(2), builders.member(2, phase=PodPhase.PENDING)], decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    assert play.wanted(Release) == []
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) >= {uid(0, 1), uid(1)}


def test_replacement_without_order_runs_and_is_reported() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(seen(0, 1), after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(after=LIMITS.release - 1.0)
    assert not play.round.phase.is_final, "its agent may still report it"
    play.tell(after=1.0)
    assert play.round.phase is Phase.DONE
    assert _condition(play)["reason"] == "RanUnheld"


def test_replacement_without_a_node_at_the_release_is_neither_held_nor_reported_as_unheld() -> None:
    """Its node may be a new one, on which the agent starts later than the pod."""
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), seen(0, 1, phase=PodPhase.PENDING, node=NodeName("")))
    play.tell(after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    play.wanted(Stop)
    play.tell(arrived(0), after=LIMITS.release)
    play.tell(seen(0, 1), after=LIMITS.release)
    assert (play.round.phase, play.wanted(Stop)) == (Phase.DONE, [])
    assert _condition(play)["status"] == "True"


def released_without_the_replacement() -> Play:
    """Return a round whose other member runs, while the replacement of the first has not begun to."""
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    return play


def test_replacement_that_runs_when_the_round_ends_for_another_fault_is_back() -> None:
    play = released_without_the_replacement()
    play.tell(seen(0, 1), FaultReported(uid(1), "Exit1", "exited", at=play.now))
    assert (play.round.phase, play.stands(0, 1)) == (Phase.DONE, MemberPhase.RUNNING)
    assert [each.pod for each in play.advance.again] == [uid(1)]


def test_round_that_ends_before_a_replacement_runs_is_degraded_and_drops_its_hold() -> None:
    play = released_without_the_replacement()
    play.tell(after=LIMITS.recreated)
    assert (play.round.phase, pods(play.wanted(Abort))) == (Phase.DEGRADED, {uid(0, 1)})
    assert [(each.member, each.reason) for each in outcome.failures(play.round)] == [("train-0-1", "NotRunning")]


def test_replacement_unknown_to_its_node_is_still_expected() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.GONE))
    assert play.stands(0, 1) is MemberPhase.JOINING


def test_member_leaving_after_release_is_still_replaced() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.stop)
    play.reported(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(PodGone(uid(0)))
    assert (play.round.phase, list(play.round.awaited)) == (Phase.RELEASING, ["train/0"])


def test_failed_member_is_held_until_others_are_released() -> None:
    play = Play([builders.member(0, owner=None), builders.member(1)], limits=Limits(stop=100.0))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(FaultReported(uid(0), "Xid79", "gone", needs_recreation=True))
    assert (play.stands(0), play.round.phase) == (MemberPhase.FAILED, Phase.STOPPING)
    play.wanted(Stop)
    play.tell(after=LIMITS.hold / 3)
    assert uid(0) in pods(play.wanted(Stop))
    play.reported(StepPhase.STOPPED, 1)
    assert (pods(play.wanted(Release)), pods(play.wanted(Abort))) == ({uid(1)}, {uid(0)})


# ---- further faults, and self-released members ----


def test_fault_while_stopping_joins_round() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(FaultReported(uid(0), "Exit1", "exited"), FaultReported(uid(1), "Xid79", "gone", needs_recreation=True))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(1), "Xid79")]
    assert play.round.again == ()


def test_late_fault_of_a_stopped_member_changes_nothing() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(FaultReported(uid(1), "Exit1", "exited"))
    assert (play.round.phase, play.stands(1), play.round.again) == (Phase.STOPPING, MemberPhase.STOPPED, ())


def test_replacement_that_fails_after_the_release_before_it_is_known_to_run_is_decided_afterwards() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    fault = FaultReported(uid(0, 1), "Exit1", "exited", at=play.now)
    play.tell(fault)
    play.reported(StepPhase.RUNNING, 1)
    assert play.advance.again == (fault,)


def test_fault_of_released_member_begins_another_round() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0)
    fault = FaultReported(uid(0), "Exit1", "exited again")
    play.tell(fault, after=0.5)
    assert (play.round.phase, play.advance.again) == (Phase.RELEASING, ())
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_next_round_waits_briefly_for_last_answers() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    fault = FaultReported(uid(0), "Exit1", "exited again")
    play.tell(fault)
    play.tell(after=LIMITS.resend)
    assert play.advance.again == (fault,)
    assert play.round.phase is Phase.FAILED


def test_next_round_waits_for_reconnecting_agents_after_outage() -> None:
    """A new leader gets a fault from the first agent that reconnects; the others report their members' phases."""
    play = taken_over(2)
    play.tell(StepResult(uid(0), StepPhase.RUNNING), NodeChanged(builders.member(0).node, connected=True))
    fault = FaultReported(uid(0), "Exit1", "exited", at=play.now)
    play.tell(fault)
    play.tell(after=LIMITS.redial - 1.0)
    assert play.round.phase is Phase.RELEASING
    play.tell(StepResult(uid(1), StepPhase.RUNNING), NodeChanged(builders.member(1).node, connected=True))
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_agents_dial_again_within_the_wait_for_them() -> None:
    longest_wait = 1.2 * connection.Limits().longest_wait  # with jitter
    assert Limits().redial > longest_wait + endpoint.CONNECT_SECONDS


def test_next_round_does_not_wait_indefinitely_for_agents() -> None:
    play = taken_over(2)
    play.tell(StepResult(uid(0), StepPhase.RUNNING), NodeChanged(builders.member(0).node, connected=True))
    play.tell(FaultReported(uid(0), "Exit1", "exited", at=play.now))
    play.tell(after=LIMITS.redial)
    assert (play.round.phase, play.stands(1)) == (Phase.DEGRADED, MemberPhase.FAILED)


def test_late_fault_from_before_stop_begins_nothing() -> None:
    play = Play(builders.gang(2))
    play.now += 1.0
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(FaultReported(uid(1), "Exit1", "exited", at=NOW + 0.5))
    play.reported(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, ())


def test_late_fault_from_before_all_were_stopped_begins_nothing() -> None:
    """Its member's new container was held then."""
    play = Play(builders.gang(2))
    play.tell(StepResult(uid(0), StepPhase.STOPPED), after=3.0)
    play.tell(StepResult(uid(1), StepPhase.STOPPED), after=3.0)
    play.tell(FaultReported(uid(0), "Exit1", "exited", at=NOW + 5.0))
    play.reported(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, ())


def test_late_device_fault_is_decided_after_round() -> None:
    play = Play(builders.gang(2))
    play.now += 1.0
    play.reported(StepPhase.STOPPED, 0, 1)
    fault = FaultReported(uid(1), "Xid79", "gone", needs_recreation=True, at=NOW + 0.5)
    play.tell(fault)
    play.reported(StepPhase.RUNNING, 0, 1)
    assert play.advance.again == (fault,)


def test_faults_after_release_are_decided_in_order() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    first, second = FaultReported(uid(1), "Exit42", "exited"), FaultReported(uid(0), "Exit1", "exited")
    play.tell(first)
    play.tell(second)
    play.reported(StepPhase.RUNNING, 0, 1)
    assert play.advance.again == (first, second)


def test_pending_member_that_fails_after_release_is_decided_afterwards() -> None:
    play = Play([builders.member(0), builders.member(1), builders.member(2, phase=PodPhase.PENDING)])
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0)
    fault = FaultReported(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2), fault, after=1.0)
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_member_that_came_after_release_is_known() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    fault = FaultReported(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2), fault, after=1.0)
    play.reported(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_new_member_that_fails_while_stopping_is_decided_afterwards() -> None:
    play = Play(builders.gang(2))
    fault = FaultReported(uid(2), "Exit1", "exited", at=NOW + 1.0)
    play.tell(seen(2, phase=PodPhase.FAILED), fault, after=1.0)
    assert play.round.phase is Phase.STOPPING
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, (fault,))


def test_fault_of_unknown_pod_from_before_round_is_dropped() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(FaultReported(uid(0, 7), "Exit1", "exited", at=NOW - 1.0))
    play.reported(StepPhase.RUNNING, 0, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DONE, ())


@pytest.mark.parametrize("reported_late", [False, True], ids=["at once", "after the release"])
def test_member_that_fails_twice_is_decided_after_round(reported_late: bool) -> None:
    play = one_cannot_be_started(2)
    fault = FaultReported(uid(0), "Exit1", "what kubelet started exited", at=NOW + 1.0)
    play.now += 2.0
    if not reported_late:
        play.tell(fault)
    play.reported(StepPhase.STOPPED, 1)
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(1)})
    if reported_late:
        play.tell(fault)
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.advance.again) == (Phase.DEGRADED, (fault,))


def test_unresponsive_member_that_then_fails_is_decided_afterwards() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    play.tell(after=LIMITS.release)
    assert (play.round.phase, play.stands(1)) == (Phase.RELEASING, MemberPhase.FAILED)
    fault = FaultReported(uid(1), "Exit1", "exited", at=play.now)
    play.tell(fault)
    assert play.advance.again == (fault,)


def test_completed_member_started_again_may_fail() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.COMPLETED, 0)
    play.reported(StepPhase.STOPPED, 1)
    fault = FaultReported(uid(0), "Exit1", "exited", at=NOW + 1.0)
    play.tell(fault, after=1.0)
    play.reported(StepPhase.RUNNING, 1)
    assert play.advance.again == (fault,)


def test_fault_of_leaving_pod_begins_nothing() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(FaultReported(uid(0), "Exit137", "killed"))
    play.tell(PodGone(uid(0)), FaultReported(uid(0), "Exit137", "killed", at=NOW))
    play.tell(seen(0, 1))
    play.reported(StepPhase.STOPPED, 1)
    assert play.round.again == ()


def test_later_decided_fault_leaves_others_time_to_answer() -> None:
    play = one_cannot_be_started(3)
    play.tell(FaultReported(uid(0), "Exit1", "what kubelet started exited", at=NOW))
    play.now += LIMITS.after_fault
    play.reported(StepPhase.STOPPED, 1, 2)
    assert play.round.phase is Phase.RELEASING
    play.reported(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.RELEASING
    play.tell(after=LIMITS.after_fault)
    assert (play.round.phase, len(play.advance.again)) == (Phase.DEGRADED, 1)


def test_faults_that_keep_coming_do_not_prolong_the_wait_for_answers() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(FaultReported(uid(1), "Exit1", "exited"), after=1.0)
    play.tell(FaultReported(uid(1), "Exit1", "exited"), after=LIMITS.after_fault / 2)
    assert (play.round.phase, play.stands(0)) == (Phase.RELEASING, MemberPhase.RELEASING)
    play.tell(after=LIMITS.after_fault / 2)
    assert (play.round.phase, play.stands(0)) == (Phase.DEGRADED, MemberPhase.FAILED)
    [failure] = outcome.failures(play.round)
    assert (failure.reason, failure.detail) == ("NoAnswer", "its agent has not reported it running within 2 s")


def test_next_round_does_not_wait_for_the_agent_of_a_member_that_has_answered() -> None:
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 0, 1, 2)
    play.reported(StepPhase.RUNNING, 1, 2)
    play.tell(NodeChanged(builders.member(2).node, connected=False))
    play.tell(FaultReported(uid(1), "Exit1", "exited"), after=1.0)
    play.tell(after=LIMITS.after_fault)
    assert play.round.phase is Phase.DEGRADED


def test_self_released_member_that_fails_is_decided_after_round() -> None:
    play = Play(builders.gang(2))
    play.now += 5.0
    play.reported(StepPhase.STOPPED, 0, 1)
    fault = FaultReported(uid(0), "Exit1", "exited", at=NOW + 4.0)
    play.tell(StepResult(uid(0), StepPhase.SELF_RELEASED, "HoldTimeout"), fault)
    play.reported(StepPhase.RUNNING, 1)
    assert play.advance.again == (fault,)


def test_member_at_fault_is_recreated_for_its_device_and_others_for_their_nodes() -> None:
    both = replace(RECREATE_0, recreate=frozenset({"train/0", "train/1"}))
    play = Play(builders.gang(3), decision=both, cause=builders.fault(0, code="Xid79", action_class="Replace"))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(0), "Xid79"), (uid(1), "NodeLost")]


def test_pod_that_fails_after_decision_is_recreated() -> None:
    play = Play([builders.member(0), builders.member(1, phase=PodPhase.FAILED)])
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(1), "PodFailed")]


def test_no_pod_is_deleted_once_the_round_has_failed_for_one_that_must_stay() -> None:
    """It has opted out since the decision."""
    decision = Decision(Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST, "", frozenset({"train/0", "train/1"}))
    play = Play([builders.member(0, annotations={}), *builders.gang(3)[1:]], decision=decision)
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.FAILED, [])


def test_protected_pod_that_fails_after_decision_is_left_out() -> None:
    play = Play([builders.member(0), builders.member(1, phase=PodPhase.FAILED, owner=None)])
    play.reported(StepPhase.STOPPED, 0)
    assert (play.wanted(Recreate), pods(play.wanted(Release))) == ([], {uid(0)})


def test_failed_pod_that_its_job_has_replaced_before_the_round_is_not_waited_for() -> None:
    play = Play([builders.member(0, phase=PodPhase.FAILED), builders.member(0, generation=1)])
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    play.tell(StepResult(uid(0, 1), StepPhase.RUNNING))
    assert play.round.phase is Phase.DONE
    assert status.render(play.round)["members"]["total"] == 1


def test_member_that_has_completed_before_the_round_counts_as_one() -> None:
    play = Play([builders.member(0), builders.member(1, phase=PodPhase.SUCCEEDED)])
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.RUNNING, 0)
    counts = status.render(play.round)["members"]
    assert (counts["total"], counts["running"], play.round.phase) == (2, 1, Phase.DONE)


def test_pod_that_fails_while_others_stop_is_recreated_and_blocks_nothing() -> None:
    play = Play(builders.gang(2))
    play.tell(seen(0, phase=PodPhase.FAILED))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(0), "PodFailed")]
    assert play.round.blocking == 1


def test_stopped_member_whose_pod_fails_while_others_stop_is_recreated() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(seen(0, phase=PodPhase.FAILED))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(0), "PodFailed")]


def test_pod_that_fails_by_its_deletion_is_still_replaced() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(seen(0, deleting=True, phase=PodPhase.FAILED))
    play.reported(StepPhase.STOPPED, 1)
    assert (play.stands(0), play.round.blocking, play.wanted(Release)) == (MemberPhase.LEAVING, 0, [])
    play.tell(PodGone(uid(0)))
    assert list(play.round.awaited) == ["train/0"]


def test_replacement_whose_node_goes_out_of_service_after_the_release_has_failed() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    play.wanted(Recreate)
    play.tell(NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True))
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.DEGRADED, [])
    assert [each.reason for each in outcome.failures(play.round)] == ["NodeOutOfService"]


def test_protected_pod_that_fails_while_others_stop_is_left_out() -> None:
    play = Play([builders.member(0, owner=None), builders.member(1)])
    play.tell(seen(0, owner=None, phase=PodPhase.FAILED))
    play.reported(StepPhase.STOPPED, 1)
    assert (play.wanted(Recreate), pods(play.wanted(Release))) == ([], {uid(1)})


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (seen(1, phase=PodPhase.FAILED), "PodFailed"),
        (NodeChanged(NodeName("node-1"), connected=False, lost=True, out_of_service=True), "NodeOutOfService"),
    ],
    ids=["pod", "node"],
)
def test_member_that_fails_with_its_pod_after_the_release_leaves_gang_degraded(event: RoundEvent, reason: str) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0)
    play.tell(event)
    assert (play.round.phase, play.round.members[uid(1)].reason) == (Phase.DEGRADED, reason)
    assert play.wanted(Recreate) == []


def test_pod_that_has_succeeded_is_not_awaited() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(seen(0, phase=PodPhase.SUCCEEDED))
    assert (play.stands(0), pods(play.wanted(Release))) == (MemberPhase.COMPLETED, {uid(1)})
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, _condition(play)["reason"]) == (Phase.DONE, "AllHeld")


def test_member_that_its_agent_refuses_as_completed_fails_nothing() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.REFUSED, 0, reason="Completed")
    play.reported(StepPhase.STOPPED, 1)
    assert (play.stands(0), pods(play.wanted(Release))) == (MemberPhase.COMPLETED, {uid(1)})


@pytest.mark.parametrize("over", [{"deleting": True}, {"phase": PodPhase.SUCCEEDED}, {"phase": PodPhase.FAILED}])
def test_new_pod_that_ends_already_is_no_replacement(over: dict[str, Any]) -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), seen(0, 1, **over))
    assert uid(0, 1) not in play.round.members


def test_too_early_self_release_fails_round_and_begins_another() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.SELF_RELEASED, 0, reason="HoldTimeout")
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "SelfReleased")
    assert [(each.pod, each.code) for each in play.advance.again] == [(uid(0), "SelfReleased")]
    assert play.wanted(Release) == []
    assert _condition(play)["reason"] == "RanUnheld"


def test_failed_member_that_its_agent_releases_too_early_fails_the_round() -> None:
    """Its processes may run next to old containers."""
    play = one_cannot_be_started(2)
    play.reported(StepPhase.SELF_RELEASED, 0, reason="HoldTimeout")
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "SelfReleased")


@pytest.mark.parametrize("phase", StepPhase)
def test_result_of_an_unknown_pod_has_no_effect(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    members, play.effects = play.round.members, []
    play.tell(StepResult(uid(7), phase))
    assert (play.round.phase, play.round.members, play.effects) == (Phase.STOPPING, members, [])


@pytest.mark.parametrize("phase", StepPhase)
def test_result_of_a_completed_member_has_no_effect(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.COMPLETED, 0)
    play.reported(phase, 0)
    assert (play.round.phase, play.stands(0)) == (Phase.STOPPING, MemberPhase.COMPLETED)


@pytest.mark.parametrize("phase", StepPhase)
def test_result_of_a_member_that_failed_after_the_release_does_not_bring_it_back(phase: StepPhase) -> None:
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 0, 1, 2)
    play.reported(StepPhase.FAILED, 0, reason="StartFailed")
    play.reported(phase, 0)
    assert (play.round.phase, play.stands(0)) == (Phase.RELEASING, MemberPhase.FAILED)


@pytest.mark.parametrize("phase", [StepPhase.FAILED, StepPhase.STUCK, StepPhase.REFUSED])
def test_others_wait_until_a_leaving_pod_is_gone_whatever_its_agent_reports(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.tell(seen(0, deleting=True))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(phase, 0, reason="Failed")
    assert (play.round.phase, play.stands(0), play.wanted(Release)) == (Phase.STOPPING, MemberPhase.LEAVING, [])


def test_pod_that_its_node_does_not_have_is_gone() -> None:
    """Its agent has waited for the ends of its containers."""
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.GONE, 0)
    assert (play.stands(0), list(play.round.awaited)) == (MemberPhase.GONE, ["train/0"])


def test_repeated_result_of_a_running_member_does_not_make_it_slower() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(StepResult(uid(0), StepPhase.RUNNING), after=1.0)
    play.tell(StepResult(uid(0), StepPhase.RUNNING), after=1.0)
    assert play.round.members[uid(0)].running == 1.0


def test_replacement_that_cannot_be_held_has_run_next_to_old_containers() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.REFUSED, "CannotHold"))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 1)
    assert [(each.member, each.reason) for each in outcome.failures(play.round)] == [("train-0-1", "CannotHold")]
    assert (play.round.phase, _condition(play)["reason"]) == (Phase.DEGRADED, "RanUnheld")


@pytest.mark.parametrize("result", [StepPhase.RUNNING, StepPhase.FAILED])
def test_replacement_that_begins_after_the_release_did_not_run_unheld(result: StepPhase) -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(StepResult(uid(0, 1), result))
    assert play.round.phase.is_final
    assert _condition(play)["reason"] == "AllHeld"


def test_replacement_that_runs_before_the_release_proves_nothing() -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.RUNNING))
    assert (play.round.phase, play.wanted(Release)) == (Phase.STOPPING, [])
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, _condition(play)["reason"]) == (Phase.DONE, "RanUnheld")


def test_leaving_member_that_its_agent_releases_does_not_fail_the_round() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STUCK, 0)
    play.reported(StepPhase.SELF_RELEASED, 0, reason="HoldTimeout")
    assert (play.round.phase, play.stands(0)) == (Phase.STOPPING, MemberPhase.LEAVING)


def test_member_whose_agent_sees_its_deletion_first_is_awaited() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.REFUSED, 0, reason="PodDeleting")
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.resend)
    assert (play.round.phase, play.stands(0), play.wanted(Recreate)) == (Phase.STOPPING, MemberPhase.LEAVING, [])
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert pods(play.wanted(Release)) == {uid(0, 1), uid(1)}


def test_round_given_up_by_previous_leader_stays_so() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.SELF_RELEASED, 0, reason="Aborted")
    assert (play.round.phase, play.round.reason, play.advance.again) == (Phase.FAILED, "Aborted", ())


def test_self_release_after_release_runs_and_is_reported() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0)
    play.reported(StepPhase.SELF_RELEASED, 1, reason="HoldTimeout")
    assert play.round.phase is Phase.DONE
    assert (_condition(play)["status"], _condition(play)["reason"]) == ("False", "RanUnheld")


def test_member_not_running_after_release_leaves_gang_degraded() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(StepPhase.RUNNING, 0)
    play.tell(after=LIMITS.release)
    assert play.round.phase is Phase.DEGRADED
    assert [each.reason for each in outcome.failures(play.round)] == ["NoAnswer"]
    assert uid(1) in pods(play.wanted(Abort))


def test_a_released_member_whose_agent_restarts_gets_its_time_from_the_new_connection() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(NodeChanged(NodeName("node-1"), connected=False))
    play.reported(StepPhase.RUNNING, 0)
    play.tell(after=LIMITS.release + LIMITS.reconnect - 1.0)
    assert not play.round.phase.is_final
    play.wanted(Release)
    play.tell(NodeChanged(NodeName("node-1"), connected=True))
    assert pods(play.wanted(Release)) == {uid(1)}
    play.tell(after=LIMITS.release - 1.0)
    assert not play.round.phase.is_final
    play.reported(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.DONE


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_released_member_whose_agent_stays_silent_fails_in_the_end(comes_back: bool) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(NodeChanged(NodeName("node-1"), connected=False))
    play.reported(StepPhase.RUNNING, 0)
    if comes_back:
        play.tell(NodeChanged(NodeName("node-1"), connected=True), after=LIMITS.reconnect)
    play.tell(after=LIMITS.release + (0.0 if comes_back else LIMITS.reconnect))
    assert play.round.phase is Phase.DEGRADED
    assert [each.reason for each in outcome.failures(play.round)] == ["NoAnswer"]


def test_cancelled_round_releases_all() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(Cancelled("deleted"))
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "Cancelled")
    assert pods(play.wanted(Abort)) == {uid(0), uid(1)}


def test_agent_that_connects_at_the_moment_of_a_cancellation_stops_nothing() -> None:
    play = Play(builders.gang(2))
    play.wanted(Stop)
    node = NodeName("node-0")
    play.tell(NodeChanged(node, connected=False), NodeChanged(node, connected=True), Cancelled("deleted"))
    assert (play.round.phase, play.wanted(Stop)) == (Phase.FAILED, [])


def test_cancelled_round_deletes_no_pod_whose_deadline_passes_at_that_moment() -> None:
    play = Play(builders.gang(2))
    play.tell(Cancelled("deleted"), after=LIMITS.stop)
    assert (play.round.phase, play.wanted(Recreate)) == (Phase.FAILED, [])


@pytest.mark.parametrize("left", [0, 1])
def test_round_ends_without_deletion_when_a_member_leaves_its_gang(left: int) -> None:
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 2)
    play.tell(MemberLeft(uid(left)))
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "MemberLeft")
    assert pods(play.wanted(Abort)) == {uid(0), uid(1), uid(2)}
    assert not play.wanted(Recreate)
    assert [each.pod for each in play.advance.again] == [uid(0)] * left  # decided on again if its member stayed


def test_requested_round_that_ends_because_a_member_leaves_its_gang_is_not_repeated() -> None:
    play = Play(builders.gang(2), cause=Request(GANG, "me", "new weights", NOW))
    play.tell(MemberLeft(uid(0)))
    assert (play.round.phase, play.round.reason, play.advance.again) == (Phase.FAILED, "MemberLeft", ())


@pytest.mark.parametrize("left", [1, 7], ids=["completed", "unknown"])
def test_pod_that_the_round_does_not_stop_may_leave_its_gang(left: int) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.COMPLETED, 1)
    play.tell(MemberLeft(uid(left)))
    assert play.round.phase is Phase.STOPPING


def test_member_that_is_being_deleted_may_not_leave_its_gang() -> None:
    play = Play(builders.gang(2))
    play.tell(seen(1, deleting=True))
    play.tell(MemberLeft(uid(1)))
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "MemberLeft")


@pytest.mark.parametrize("later", [{"phase": PodPhase.SUCCEEDED}, {"phase": PodPhase.FAILED}, {"deleting": True}])
def test_pod_that_changes_after_its_member_is_over_or_runs_again_changes_nothing_else(later: dict[str, Any]) -> None:
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 0, 1, 2)
    play.reported(StepPhase.FAILED, 0, reason="StartFailed")
    play.tell(seen(0, **later))
    assert (play.round.phase, play.stands(0)) == (Phase.RELEASING, MemberPhase.FAILED)
    play.reported(StepPhase.RUNNING, 1)
    play.tell(seen(1, deleting=True))
    assert (play.round.phase, play.stands(1)) == (Phase.RELEASING, MemberPhase.RUNNING)


@pytest.mark.parametrize("phase", [StepPhase.STOPPED, StepPhase.RUNNING])
def test_released_member_may_leave_its_gang(phase: StepPhase) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.reported(phase, 0)
    play.tell(MemberLeft(uid(0)))
    assert play.round.phase is Phase.RELEASING


def test_round_does_not_wait_for_a_released_member_that_has_left_its_gang() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0, 1)
    play.tell(MemberLeft(uid(0)))  # its agent's report goes to its new gang
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, outcome.failures(play.round)) == (Phase.DONE, ())


@pytest.mark.parametrize("came", [True, False], ids=["new pod", "old pod"])
def test_round_does_not_wait_for_a_recreated_member_that_leaves_its_gang_after_the_release(came: bool) -> None:
    play = Play(builders.gang(2), decision=RECREATE_0)
    if came:
        play.tell(PodGone(uid(0)), arrived(0))
    else:
        play.tell(StepResult(uid(0), StepPhase.STOPPED), seen(0, deleting=True))  # its pod stays for long
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    assert play.round.phase is Phase.RELEASING
    play.reported(StepPhase.RUNNING, 1)

    play.tell(MemberLeft(uid(0, int(came))))

    assert (play.round.phase, outcome.failures(play.round)) == (Phase.DONE, ())


def test_node_that_goes_out_of_service_fails_the_members_that_are_still_in_the_round() -> None:
    play = Play(builders.gang(3))
    play.reported(StepPhase.STOPPED, 0, 1, 2)
    play.tell(
        NodeChanged(NodeName("node-0"), connected=False),
        NodeChanged(NodeName("node-0"), connected=True),  # that looks for the node's members
        MemberLeft(uid(0)),
        NodeChanged(NodeName("node-0"), connected=False, lost=True, out_of_service=True),
        NodeChanged(NodeName("node-1"), connected=False, lost=True, out_of_service=True),
    )
    assert (play.stands(1), play.stands(2)) == (MemberPhase.FAILED, MemberPhase.RELEASING)


@pytest.mark.parametrize("had_no_node", [True, False])
def test_node_that_goes_out_of_service_fails_a_replacement_that_has_just_appeared_on_it(had_no_node: bool) -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.REFUSED, 0, reason="SandboxNotReady")
    play.tell(PodGone(uid(0)))
    if had_no_node:
        play.tell(MemberSeen(replace(builders.member(0, generation=1, phase=PodPhase.PENDING), node=NodeName(""))))
    play.tell(
        NodeChanged(NodeName("node-1"), connected=False),
        NodeChanged(NodeName("node-1"), connected=True),  # that looks for the node's members
        MemberSeen(replace(builders.member(0, generation=1, phase=PodPhase.PENDING), node=NodeName("node-2"))),
        NodeChanged(NodeName("node-2"), connected=False, lost=True, out_of_service=True),
    )
    assert play.stands(0, 1) is MemberPhase.FAILED


def test_released_member_has_its_time_to_run_from_the_release_on() -> None:
    play = Play(builders.gang(2))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(after=LIMITS.stop - 1.0)
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 0)
    play.tell(after=LIMITS.release - 1.0)
    assert (play.round.phase, play.stands(1)) == (Phase.RELEASING, MemberPhase.RELEASING)
    play.tell(after=1.0)
    assert (play.round.phase, play.stands(1)) == (Phase.DEGRADED, MemberPhase.FAILED)


def test_releasing_round_is_not_cancelled() -> None:
    play = Play(builders.gang(1))
    play.reported(StepPhase.STOPPED, 0)
    play.tell(Cancelled("deleted"))
    assert play.round.phase is Phase.RELEASING


@pytest.mark.parametrize(
    "before", [[], [PodGone(uid(0))], [PodGone(uid(0)), arrived(0)]], ids=["leaving", "gone", "joining"]
)
def test_round_that_is_cancelled_after_its_release_waits_for_no_recreated_member(before: list[RoundEvent]) -> None:
    """Its JobSet is suspended: no pod comes."""
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(StepResult(uid(0), StepPhase.STOPPED), seen(0, deleting=True), *before)
    play.reported(StepPhase.STOPPED, 1)
    play.tell(after=LIMITS.hold_for_recreated)
    play.tell(Cancelled("its JobSet is suspended"))
    assert play.round.phase is Phase.RELEASING, "the agent of the other one has not answered"

    play.tell(StepResult(uid(1), StepPhase.RUNNING))

    assert (play.round.phase, outcome.failures(play.round)) == (Phase.DONE, ())


def test_abandoned_round_is_dropped_by_the_agents_of_members_with_orders() -> None:
    play = Play([*builders.gang(3), builders.member(3, phase=PodPhase.SUCCEEDED)])
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.COMPLETED, 1)
    aborts = machine.abandon(play.round, reason="Internal", now=play.now)
    assert pods(aborts) == {uid(0), uid(2)}
    assert {abort.reason for abort in aborts} == {"Internal"}


def test_final_round_does_not_change() -> None:
    play = Play(builders.gang(1))
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.RUNNING, 0)
    over = play.round
    play.effects.clear()
    play.reported(StepPhase.FAILED, 0)
    assert (play.round, play.effects) == (over, [])


def test_round_never_exceeds_its_maximum() -> None:
    play = Play(builders.gang(2), limits=Limits(stop=1e6, whole=100.0))
    play.tell(after=100.0)
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "Timeout")


# ---- rolling rounds ----


def rolling(size: int, at_a_time: int) -> Play:
    return Play(builders.gang(size), cause=Request(GANG, "me", "new weights", NOW, max_unavailable=at_a_time))


def test_rolling_round_limits_members_away() -> None:
    play = rolling(5, 2)
    assert pods(play.wanted(Stop)) == {uid(0), uid(1)}
    play.reported(StepPhase.STOPPED, 0)
    assert (pods(play.wanted(Release)), play.wanted(Stop)) == ({uid(0)}, [])
    play.reported(StepPhase.RUNNING, 0)
    assert pods(play.wanted(Stop)) == {uid(2)}
    for index in (1, 2, 3, 4):
        play.reported(StepPhase.STOPPED, index)
        play.reported(StepPhase.RUNNING, index)
    assert play.round.phase is Phase.DONE
    assert _condition(play)["reason"] == "Rolling"


def test_rolling_round_stops_after_a_failure() -> None:
    play = rolling(3, 1)
    play.reported(StepPhase.REFUSED, 0, reason="NotOptedIn")
    assert (play.round.phase, pods(play.wanted(Stop))) == (Phase.DEGRADED, {uid(0)})
    assert play.stands(1) is MemberPhase.WAITING


def test_rolling_round_continues_after_a_released_member_has_left_its_gang() -> None:
    play = rolling(2, 1)
    play.reported(StepPhase.STOPPED, 0)
    play.tell(MemberLeft(uid(0)))
    assert (play.round.phase, play.stands(1)) == (Phase.STOPPING, MemberPhase.STOPPING)


def test_rolling_round_recreates_member_and_awaits_replacement() -> None:
    play = rolling(2, 1)
    play.reported(StepPhase.STUCK, 0)
    play.tell(PodGone(uid(0)), arrived(0))
    assert (play.stands(0, 1), play.stands(1)) == (MemberPhase.JOINING, MemberPhase.WAITING)
    play.tell(seen(0, 1))
    assert (play.stands(0, 1), play.stands(1)) == (MemberPhase.RUNNING, MemberPhase.STOPPING)


def test_rolling_round_restarts_a_waiting_member_that_fails_at_once_and_no_other() -> None:
    play = rolling(5, 1)
    play.wanted(Stop)
    play.tell(FaultReported(uid(4), "Exit1", "exited", at=NOW))
    assert play.stands(4) is MemberPhase.STOPPING
    assert pods(play.wanted(Stop)) == {uid(4)}


def test_rolling_round_recreates_a_waiting_member_whose_pod_fails() -> None:
    play = rolling(3, 1)
    play.tell(seen(2, phase=PodPhase.FAILED))
    assert [(each.pod.uid, each.reason) for each in play.wanted(Recreate)] == [(uid(2), "PodFailed")]


def test_rolling_round_does_not_wait_for_a_pod_that_was_unavailable_before_it() -> None:
    members = [builders.member(0, phase=PodPhase.PENDING), builders.member(1)]
    play = Play(members, cause=Request(GANG, "me", "new weights", NOW, max_unavailable=1))
    assert pods(play.wanted(Stop)) == {uid(1)}
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 1)
    assert play.round.phase is Phase.DONE


def test_fault_from_before_a_members_stop_ends_no_rolling_round() -> None:
    play = rolling(2, 1)
    play.tell(StepResult(uid(0), StepPhase.STOPPED), after=2.0)
    play.reported(StepPhase.RUNNING, 0)
    play.tell(FaultReported(uid(0), "Exit1", "exited", at=NOW + 1.0))
    assert (play.stands(1), play.round.again) == (MemberPhase.STOPPING, ())


def test_rolling_round_ends_if_a_pod_is_not_replaced_in_time() -> None:
    play = rolling(2, 1)
    play.reported(StepPhase.STUCK, 0)
    play.tell(PodGone(uid(0)))
    play.tell(after=LIMITS.recreated - 1.0)
    assert (play.round.phase.is_final, play.stands(1)) == (False, MemberPhase.WAITING)
    play.tell(after=1.0)
    assert (play.round.phase, play.stands(1)) == (Phase.DEGRADED, MemberPhase.WAITING)


def test_rolling_round_stops_no_more_members_once_a_restarted_one_has_failed() -> None:
    play = rolling(3, 1)
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.RUNNING, 0)
    play.tell(FaultReported(uid(0), "Exit1", "exited", at=NOW + 1.0))
    play.reported(StepPhase.STOPPED, 1)
    play.reported(StepPhase.RUNNING, 1)
    assert (play.round.phase, play.round.reason, play.stands(2)) == (
        Phase.DEGRADED,
        "FailedAgain",
        MemberPhase.WAITING,
    )
    assert [each.pod for each in play.advance.again] == [uid(0)]


def test_rolling_round_ends_for_a_replacement_that_does_not_run_in_time() -> None:
    play = rolling(2, 1)
    play.reported(StepPhase.STUCK, 0)
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(after=LIMITS.recreated - 1.0)
    assert play.stands(0, 1) is MemberPhase.JOINING
    play.tell(after=1.0)
    assert (play.round.phase, play.stands(0, 1), play.stands(1)) == (
        Phase.DEGRADED,
        MemberPhase.FAILED,
        MemberPhase.WAITING,
    )


def test_rolling_round_goes_on_after_a_member_that_its_agent_has_released() -> None:
    """Members do not wait for one another there."""
    play = rolling(2, 1)
    play.reported(StepPhase.STOPPED, 0)
    play.reported(StepPhase.SELF_RELEASED, 0, reason="HoldTimeout")
    assert (play.stands(0), play.stands(1)) == (MemberPhase.RUNNING, MemberPhase.STOPPING)


def test_rolling_round_ends_if_an_agent_has_not_begun_to_stop_its_member() -> None:
    """Its round was aborted by the leader before: the container was not restarted."""
    play = rolling(2, 1)
    play.reported(StepPhase.SELF_RELEASED, 0, reason="Aborted")
    assert (play.round.phase, play.stands(0), play.stands(1)) == (
        Phase.DEGRADED,
        MemberPhase.FAILED,
        MemberPhase.WAITING,
    )


# ---- a new leader ----


def resumed(
    members: Iterable[Member],
    *reported: StepResult,
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
    first = machine.resume(REF, kept=kept, members=members, nodes=nodes, now=NOW + 5.0, **changes)
    after = machine.advance(first.round, reported, now=NOW + 5.0)
    return replace(after, effects=first.effects + after.effects)


def taken_over(size: int, **changes: Any) -> Play:
    """Return a round of a new leader to which no agent has connected yet."""
    play = Play(builders.gang(size))
    play.take(resumed(play.members.values(), **changes))
    play.now, play.effects = NOW + 5.0, []
    return play


def test_new_leader_resumes_from_agents_results() -> None:
    advance = resumed(builders.gang(2), StepResult(uid(0), StepPhase.STOPPED))
    assert (advance.round.phase, advance.round.started_at) == (Phase.STOPPING, NOW)
    assert advance.round.members[uid(0)].phase is MemberPhase.STOPPED
    after = machine.advance(advance.round, [StepResult(uid(1), StepPhase.STOPPED)], now=NOW + 5.0)
    assert pods(each for each in after.effects if isinstance(each, Release)) == {uid(0), uid(1)}


@pytest.mark.parametrize("owner", [OF_A_RAY_CLUSTER, Owner("apps", "StatefulSet", "ray", "uid-ray")])
def test_new_leader_takes_a_pod_of_another_name_for_the_one_that_was_to_be_replaced(owner: Owner) -> None:
    decision = Decision(Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST, "", frozenset({"train-0-0"}))
    newcomer = named_at_random(0, generation=1, owner=owner)
    advance = resumed([newcomer, named_at_random(1, owner=owner)], decision=decision)
    assert [*advance.round.awaited] == ([] if owner == OF_A_RAY_CLUSTER else ["train-0-0"])


def test_fault_between_release_and_new_leader_is_decided_afterwards() -> None:
    advance = resumed(builders.gang(2), StepResult(uid(0), StepPhase.RUNNING))
    fault = FaultReported(uid(0), "Exit1", "exited", at=NOW + 4.0)
    after = machine.advance(advance.round, [fault, StepResult(uid(1), StepPhase.RUNNING)], now=NOW + 6.0)
    assert (after.round.phase, after.again) == (Phase.DONE, (fault,))


def test_released_member_proves_that_all_were_stopped() -> None:
    advance = resumed(builders.gang(2), StepResult(uid(0), StepPhase.RUNNING))
    assert advance.round.phase is Phase.RELEASING
    assert pods(each for each in advance.effects if isinstance(each, Release)) == {uid(1)}
    after = machine.advance(advance.round, [StepResult(uid(1), StepPhase.RUNNING)], now=NOW + 6.0)
    assert (after.round.phase, outcome.old_may_run(after.round)) == (Phase.DONE, ())


def test_released_member_proves_that_one_that_is_being_deleted_was_stopped() -> None:
    leaving, *others = builders.gang(3)
    advance = resumed([replace(leaving, deleting=True), *others], StepResult(uid(1), StepPhase.RUNNING))
    assert advance.round.phase is Phase.RELEASING
    assert pods(each for each in advance.effects if isinstance(each, Release)) == {uid(2)}
    assert (advance.round.members[uid(0)].phase, outcome.old_may_run(advance.round)) == (MemberPhase.LEAVING, ())


def test_recreated_members_are_not_held_for_one_another() -> None:
    play = Play(builders.gang(2), decision=Decision(Kind.RECREATE_ALL, Reason.MEMBERS_LOST))
    play.tell(PodGone(uid(0)), arrived(0))
    play.tell(StepResult(uid(0, 1), StepPhase.STOPPED))
    assert play.wanted(Release) == []
    play.tell(PodGone(uid(1)))
    assert (play.round.phase, pods(play.wanted(Release))) == (Phase.RELEASING, {uid(0, 1)})


@pytest.mark.parametrize("created_at", [NOW, NOW + 5.0], ids=["in the second of the round's begin", "later"])
def test_pods_newer_than_round_are_held_without_second_deletion(created_at: float) -> None:
    new = builders.member(0, generation=5, created_at=created_at)
    advance = resumed([new, builders.member(1)], decision=RECREATE_0)
    assert [each for each in advance.effects if isinstance(each, Recreate)] == []
    assert [each.pods for each in advance.effects if isinstance(each, Stop)] == [
        {new.pod.uid: OrderKind.HOLD},
        {uid(1): OrderKind.RESTART},
    ]


def test_replacement_is_one_for_new_leader_though_the_previous_one_had_seen_it() -> None:
    new = builders.member(0, generation=1, created_at=NOW + 3.0)
    play = Play(builders.gang(2), decision=RECREATE_0)
    play.tell(PodGone(uid(0)), MemberSeen(new))
    kept = status.parse(status.render(play.round), created_at=NOW)
    advance = machine.resume(REF, kept=kept, members=[new, builders.member(1)], nodes=builders.nodes(2), now=NOW + 5.0)
    assert [each.pods for each in advance.effects if isinstance(each, Stop)] == [
        {new.pod.uid: OrderKind.HOLD},
        {uid(1): OrderKind.RESTART},
    ]


def test_pod_created_while_request_waited_is_no_replacement_for_new_leader() -> None:
    everyone = [builders.member(0), builders.member(1, created_at=NOW - 20.0)]
    play = Play(everyone, cause=Request(GANG, "me", "new weights", NOW - 60.0))
    kept = status.parse(status.render(play.round), created_at=NOW - 60.0)
    advance = machine.resume(REF, kept=kept, members=everyone, nodes=builders.nodes(2), now=NOW + 5.0)
    assert [each.pods for each in advance.effects if isinstance(each, Stop)] == [
        {uid(0): OrderKind.RESTART},
        {uid(1): OrderKind.RESTART},
    ]


def test_new_leader_of_rolling_round_counts_replacement_that_runs_already() -> None:
    request = Request(GANG, "me", "new weights", NOW, max_unavailable=1)
    advance = resumed([builders.member(0, generation=5), builders.member(1)], cause=request, max_unavailable=1)
    assert advance.round.members[uid(0, 5)].phase is MemberPhase.RUNNING
    advance = machine.advance(advance.round, [NodeChanged(NodeName("node-1"), connected=True)], now=NOW + 5.0)
    assert advance.round.members[uid(1)].phase is MemberPhase.STOPPING


@pytest.mark.parametrize("phase", [StepPhase.STOPPING, StepPhase.STOPPED])
def test_new_leader_of_rolling_round_stops_no_member_next_to_one_that_is_away(phase: StepPhase) -> None:
    """It began with the first members at once: twice as many were away as the request allows."""
    play = taken_over(2, cause=Request(GANG, "me", "new weights", NOW, max_unavailable=1), max_unavailable=1)
    play.tell(after=LIMITS.redial - 1.0)
    assert play.wanted(Stop) == []
    play.tell(StepResult(uid(1), phase), NodeChanged(NodeName("node-1"), connected=True))
    play.tell(NodeChanged(NodeName("node-0"), connected=True))
    assert play.stands(0) is MemberPhase.WAITING
    assert pods(play.wanted(Stop)) == ({uid(1)} if phase is StepPhase.STOPPING else set())
    play.reported(StepPhase.RUNNING, 1)
    assert (play.stands(0), play.stands(1)) == (MemberPhase.STOPPING, MemberPhase.RUNNING)
    assert pods(play.wanted(Stop)) == {uid(0)}


def test_new_leader_of_rolling_round_waits_for_agents_for_a_limited_time() -> None:
    play = taken_over(2, cause=Request(GANG, "me", "new weights", NOW, max_unavailable=1), max_unavailable=1)
    play.tell(NodeChanged(NodeName("node-0"), connected=True), after=1.0)
    assert play.stands(0) is MemberPhase.WAITING
    play.tell(after=LIMITS.redial)
    assert (play.stands(0), play.stands(1)) == (MemberPhase.STOPPING, MemberPhase.WAITING)


def test_new_leader_of_rolling_round_counts_a_deleted_pod_without_a_replacement_as_away() -> None:
    request = Request(GANG, "me", "new weights", NOW, max_unavailable=1)
    play = Play(builders.gang(2))
    play.take(resumed([builders.member(1)], cause=request, max_unavailable=1))
    play.effects = []
    play.tell(NodeChanged(NodeName("node-1"), connected=True), after=LIMITS.redial)
    assert (play.stands(1), play.wanted(Stop)) == (MemberPhase.WAITING, [])
    play.tell(seen(0, 5), after=1.0)
    assert pods(play.wanted(Stop)) == {uid(1)}


def test_new_leader_of_rolling_round_awaits_no_replacement_of_a_pod_that_had_completed_and_was_removed() -> None:
    request = Request(GANG, "me", "new weights", NOW, max_unavailable=1)
    play = Play([builders.member(0, phase=PodPhase.SUCCEEDED), builders.member(1)], cause=request)
    kept = status.parse(status.render(play.round), created_at=NOW)
    nodes = builders.nodes(2)
    play.take(machine.resume(REF, kept=kept, members=[builders.member(1)], nodes=nodes, now=NOW, max_unavailable=1))
    assert not play.round.awaited


def test_new_leader_awaits_the_second_of_two_pods_of_which_one_is_replaced() -> None:
    gone = frozenset(named_at_random(index).slot for index in range(2))
    decision = Decision(Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST, "", gone)
    assert [*resumed([named_at_random(0, generation=1)], decision=decision).round.awaited] == ["train-1-0"]


@pytest.mark.parametrize(
    ("fault", "has"),
    [
        pytest.param(FaultReported(uid(0), "Exit1", "", at=NOW + 2.0), True, id="of-a-container-that-it-stopped"),
        pytest.param(FaultReported(uid(0), "Exit1", "", at=NOW + 3.0), False, id="of-a-new-container"),
        pytest.param(FaultReported(uid(0), "Exit1", "", at=None), False, id="of-this-moment"),
        pytest.param(FaultReported(uid(0), "Xid79", "", needs_recreation=True, at=NOW + 2.0), False, id="of-a-device"),
        pytest.param(FaultReported(uid(1), "Exit1", "", at=NOW - 1.0), True, id="before-the-round"),
        pytest.param(FaultReported(uid(1), "Exit1", "", at=NOW + 2.0), False, id="of-a-pod-that-it-did-not-have"),
    ],
)
def test_late_fault_belongs_to_the_ended_round_that_stopped_its_container(fault: FaultReported, *, has: bool) -> None:
    assert outcome.EndedRound("train-4", NOW, {uid(0): NOW + 3.0}).has(fault) is has


def test_slot_with_deleted_pod_is_still_awaited() -> None:
    advance = resumed([builders.member(1)], StepResult(uid(1), StepPhase.STOPPED), decision=RECREATE_0)
    assert (advance.round.phase, list(advance.round.awaited)) == (Phase.STOPPING, ["train/0"])


def test_ending_pod_with_replacement_still_blocks() -> None:
    everyone = [builders.member(0, deleting=True), builders.member(0, generation=5), builders.member(1)]
    advance = resumed(everyone, StepResult(uid(1), StepPhase.STOPPED), StepResult(uid(0, 5), StepPhase.STOPPED))
    assert (advance.round.phase, advance.round.blocking) == (Phase.STOPPING, 1)


def test_new_leader_deletes_no_second_pod_of_slot() -> None:
    advance = resumed([builders.member(0, deleting=True), builders.member(1)])
    after = machine.advance(advance.round, [PodGone(uid(0)), arrived(0)], now=NOW + 6.0)
    fault = FaultReported(uid(0, 1), "Xid79", "gone", needs_recreation=True)
    after = machine.advance(after.round, [fault], now=NOW + 7.0)
    assert [each for each in after.effects if isinstance(each, Recreate)] == []
    assert advance.round.replaced == {"train/0"}


NODE_0 = NodeName("node-0")


def taken_over_without_node(**state: Any) -> Play:
    """Return a round of a new leader in which the first member's node is not ready, or out of service."""
    play = Play(builders.gang(2))
    kept = status.parse(status.render(play.round), created_at=NOW)
    nodes = {**builders.nodes(2), NODE_0: NodeView(NODE_0, **{"ready": None, **state})}
    play.now = NOW - 60.0  # its clock may be behind that of the leader before it
    play.take(machine.resume(REF, kept=kept, members=play.members.values(), nodes=nodes, now=play.now))
    play.tell(NodeChanged(NODE_0, connected=False, lost=True, out_of_service="out_of_service" in state))
    return play


def test_member_that_is_deleted_after_the_previous_leaders_release_proves_it() -> None:
    play = taken_over(2)
    play.tell(seen(0, deleting=True))
    play.reported(StepPhase.RUNNING, 0)
    assert (play.round.phase, play.round.blocking) == (Phase.RELEASING, 0)


def test_member_that_its_agent_released_after_the_release_of_another_runs() -> None:
    """The release proves that all old containers were dead."""
    reported = StepResult(uid(0), StepPhase.RUNNING), StepResult(uid(1), StepPhase.SELF_RELEASED, "HoldTimeout")
    advance = resumed(builders.gang(2), *reported)
    assert (advance.round.phase, advance.again) == (Phase.DONE, ())


def test_new_leader_recreates_a_pod_that_has_failed_since_the_decision() -> None:
    advance = resumed([builders.member(0, phase=PodPhase.FAILED), builders.member(1)])
    assert [(each.pod.uid, each.reason) for each in advance.effects if isinstance(each, Recreate)] == [
        (uid(0), "PodFailed")
    ]


def test_new_leader_recreates_all_if_that_was_decided() -> None:
    everything = Decision(Kind.RECREATE_ALL, Reason.MEMBERS_LOST)
    advance = resumed(builders.gang(2), decision=everything)
    assert {each.pod.uid for each in advance.effects if isinstance(each, Recreate)} == {uid(0), uid(1)}


def test_new_leader_detects_lost_nodes_itself() -> None:
    play = taken_over_without_node()
    play.tell(after=LIMITS.redial - 1.0)
    assert play.stands(0) is MemberPhase.STOPPING
    play.tell(after=1.0 + LIMITS.resend)
    assert play.stands(0) is MemberPhase.LEAVING
    assert [each.reason for each in play.wanted(Recreate)] == ["NodeLost"]


def test_new_leader_deletes_no_member_whose_agent_connects_though_its_node_is_not_ready() -> None:
    """A busy API server makes nodes not ready, and leaders lose their Leases."""
    play = taken_over_without_node()
    play.tell(NodeChanged(NODE_0, connected=True, lost=True), after=LIMITS.redial - 1.0)
    play.tell(after=1.0 + LIMITS.resend)
    assert (play.stands(0), play.wanted(Recreate)) == (MemberPhase.STOPPING, [])


def test_new_leader_deletes_member_of_a_dead_node_at_once() -> None:
    play = taken_over_without_node(out_of_service=True)
    assert play.stands(0) is MemberPhase.LEAVING
    assert {each.force for each in play.wanted(Recreate)} == {True}


@pytest.mark.parametrize("ready", [True, None])
def test_member_that_moves_has_the_reason_of_its_node(ready: bool | None) -> None:
    name = NodeName("node-0")
    nodes = {**builders.nodes(2), name: NodeView(name, ready=ready, leaving=True)}
    kept = status.parse(status.render(resumed(builders.gang(2), decision=RECREATE_0).round), created_at=NOW)
    advance = machine.resume(REF, kept=kept, members=builders.gang(2), nodes=nodes, now=NOW)
    moved = advance.round.members[uid(0)]
    assert (moved.phase, moved.reason) == (MemberPhase.LEAVING, "MaintenancePlanned" if ready else "NodeLost")
    assert advance.round.members[uid(1)].phase is not MemberPhase.LEAVING


@pytest.mark.parametrize("reason", [Reason.EVICTION_REQUESTED, Reason.MAINTENANCE_PLANNED])
@pytest.mark.parametrize("is_lost", [False, True])
def test_new_leader_that_finds_no_request_moves_the_member_for_the_reason_of_the_decision(
    reason: Reason, *, is_lost: bool
) -> None:
    decision = replace(RECREATE_0, reason=reason)
    kept = status.parse(status.render(resumed(builders.gang(2), decision=decision).round), created_at=NOW)
    nodes = {**builders.nodes(2), NodeName("node-0"): NodeView(NodeName("node-0"), ready=None if is_lost else True)}
    advance = machine.resume(REF, kept=kept, members=builders.gang(2), nodes=nodes, now=NOW)
    assert advance.round.members[uid(0)].reason == ("NodeLost" if is_lost else reason.value)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NodeView(NodeName("node-0"), ready=True), "EvictionRequested"),
        (NodeView(NodeName("node-0"), ready=None), "NodeLost"),
        (None, "EvictionRequested"),
    ],
)
def test_member_that_moves_has_the_reason_of_its_eviction(node: NodeView | None, reason: str) -> None:
    members = (builders.member(0, eviction_requested=True), builders.member(1))
    nodes = {**builders.nodes(2), **({node.name: node} if node is not None else {})}
    if node is None:
        del nodes[NodeName("node-0")]
    kept = status.parse(status.render(resumed(members, decision=RECREATE_0).round), created_at=NOW)
    moved = machine.resume(REF, kept=kept, members=members, nodes=nodes, now=NOW).round.members[uid(0)]
    assert (moved.phase, moved.reason) == (MemberPhase.LEAVING, reason)


def test_leader_with_slow_clock_still_counts_forward() -> None:
    advance = resumed(builders.gang(2))
    kept = status.parse(status.render(advance.round), created_at=NOW)
    earlier = machine.resume(REF, kept=kept, members=builders.gang(2), nodes={}, now=NOW - 600.0)
    assert earlier.round.started_at == NOW - 600.0
    assert earlier.wake_at == NOW - 600.0 + LIMITS.resend


def _condition(play: Play) -> dict[str, str]:
    conditions: list[dict[str, str]] = status.render(play.round)["conditions"]
    return {each["type"]: each for each in conditions}[status.HELD_TOGETHER]


def test_gang_without_members_ends_at_once() -> None:
    play = Play([])
    assert (play.round.phase, play.round.reason) == (Phase.FAILED, "MembersGone")


def test_negative_decision_begins_no_round() -> None:
    with pytest.raises(AssertionError, match="begins no round"):
        Play(builders.gang(1), decision=replace(IN_PLACE, kind=Kind.OBSERVE))
