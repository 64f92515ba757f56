"""Restart objects as values: read back as written, and nothing more."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.gangs import GangKey
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.model.faults import Cause, Request
from kubemend.controller.model.members import Owner
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.restarts import names, objects
from kubemend.controller.restarts.objects import RestartSpec
from kubemend.controller.rounds import machine, status
from tests.unit.controller import builders as controller_builders
from tests.unit.controller.restarts import builders

LABEL_VALUE = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")


def test_round_is_read_back_as_begun() -> None:
    new = builders.new_round(attempt=3, epoch=9)
    found = builders.of_round(new)
    assert (found.gang, found.attempt, found.epoch, dict(found.status)) == (new.gang, 3, 9, builders.STATUS)
    assert found.is_round
    assert not found.is_request
    assert not found.is_finished
    assert found.ref is not None
    assert (found.ref.id, found.ref.attempt) == ("team/a", 3)


@pytest.mark.parametrize("length", [1, 63, 64])
def test_gang_is_labelled_as_far_as_its_name_fits(length: int) -> None:
    new = builders.new_round(gang=GangKey("team", "Job", "a" * length), gang_uid="uid-of-gang")
    labelled = {names.GANG_NAME: "a" * length} if length <= 63 else {}
    assert new.labels() == {names.GANG_KIND: "Job", **labelled}
    assert builders.of_round(new).gang_uid == "uid-of-gang"


def test_finished_round_without_times_counts_from_its_creation() -> None:
    found = builders.of_round(builders.new_round(), status={"phase": "Failed"})
    assert found.finished_at == found.created_at == found.begun_at


def test_own_status_overrides_first_status() -> None:
    found = builders.of_round(builders.new_round(), status={"phase": "Done", "completionTime": "2026-01-31T08:00:00Z"})
    assert found.is_finished
    assert found.finished_at == 1769846400
    assert "trigger" not in found.status


def test_resume_data_stays_until_the_end() -> None:
    new = builders.new_round(status={**builders.STATUS, "resume": {"startedAt": 1.5}})
    found = builders.of_round(new, status={"phase": "Releasing"})
    assert (found.phase, found.status["resume"]) == ("Releasing", {"startedAt": 1.5})
    assert "resume" not in builders.of_round(new, status={"phase": "Failed"}).status


def test_kubectl_columns_are_annotated() -> None:
    annotations = builders.new_round(attempt=3).annotations()
    shown = {name: annotations[name] for name in (names.ATTEMPT, names.CAUSE, names.DECISION)}
    assert shown == {names.ATTEMPT: "3", names.CAUSE: "Xid31", names.DECISION: "InPlace"}


def test_request_is_one_until_taken_refused_or_deleted() -> None:
    assert objects.parse(builders.obj()).is_request
    assert not objects.parse({**builders.obj(), "status": {"phase": "Refused"}}).is_request
    assert not objects.parse(builders.obj(deletionTimestamp="2026-01-31T08:00:00Z")).is_request
    assert not builders.of_round(builders.new_round()).is_request


@pytest.mark.parametrize(
    ("spec", "gang"),
    [
        ({"gang": {"kind": "Gang", "name": "x"}}, GangKey("team", "Gang", "x")),
        ({"targetRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}}, GangKey("team", "Job", "x")),
        ({"targetRef": {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "x"}},
         GangKey("team", "JobSet", "x")),
        ({"targetRef": {"apiVersion": "v1", "kind": "Pod", "name": "x"}}, GangKey("team", "Pod", "x")),
        ({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}}, None),
    ],
)  # fmt: skip
def test_gang_is_the_named_one(spec: dict[str, object], gang: GangKey | None) -> None:
    assert objects.parse(builders.obj(spec=spec)).gang == gang


def test_requests_spec_counts_whatever_its_labels() -> None:
    labels = {names.GANG_KIND: "Job", names.GANG_NAME: "other"}
    assert objects.parse(builders.obj(labels=labels)).gang == builders.GANG


def test_whole_spec_is_read() -> None:
    spec = {
        "gang": {"kind": "Job", "name": "train"},
        "containers": ["a", "b"],
        "strategy": "swap",
        "gracePeriodSeconds": 0,
        "maxUnavailable": 3,
        "reason": "a new dataset",
        "timeoutSeconds": 60,
        "ttlSecondsAfterFinished": 0,
    }
    assert objects.parse(builders.obj(spec=spec)).spec == RestartSpec(
        gang=builders.GANG,
        containers=("a", "b"),
        strategy="swap",
        grace_seconds=0,
        max_unavailable=3,
        reason="a new dataset",
        timeout_seconds=60,
        ttl_seconds=0,
    )


@pytest.mark.parametrize(
    ("limit", "members", "away"),
    [
        (None, 8, None),
        (3, 8, 3),
        (10**12, 8, 8),
        (3, 0, 1),
        ("25%", 8, 2),
        ("10%", 8, 1),
        ("1%", 5000, 50),
        ("100%", 8, 8),
    ],
)
def test_percentage_gives_at_least_one_member(limit: object, members: int, away: int | None) -> None:
    spec = {"gang": {"kind": "Job", "name": "train"}, **({"maxUnavailable": limit} if limit is not None else {})}
    assert objects.parse(builders.obj(spec=spec)).spec.unavailable(members) == away


@given(LABEL_VALUE, st.integers(1, 10**6))
def test_every_gang_gets_valid_names(name: str, attempt: int) -> None:
    found = objects.name_for(GangKey("team", "Gang", name), attempt)
    assert len(found) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", found)
    assert f"-{attempt}-" in found
    assert objects.name_for(GangKey("team", "Gang", name), attempt) != found


def test_name_shows_the_gang_and_the_attempt() -> None:
    assert re.fullmatch("team-a-train-7-[0-9a-f]{4}", objects.name_for(GangKey("team", "Gang", "Team_A.train"), 7))


def test_object_has_owner_of_its_gang_if_known() -> None:
    owned = builders.new_round(owner=Owner("batch", "Job", "train", "uid-job")).body("a")["metadata"]
    assert owned["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-job"}
    ]  # and does not keep it from being deleted
    for owner in (None, Owner("example.com", "Trainer", "train", "u")):
        assert "ownerReferences" not in builders.new_round(owner=owner).body("a")["metadata"]


@pytest.mark.parametrize("phase", ["Pending", "Stopping", "Releasing"])
def test_condition_is_absent_before_the_end(phase: str) -> None:
    written = objects.completed({"phase": phase}, generation=2, now=builders.NOW)
    assert written == {"phase": phase, "observedGeneration": 2}


def test_other_conditions_stay_with_complete_condition() -> None:
    held = {"type": "HeldTogether", "status": "True"}
    status = {"phase": "Done", "conditions": [held, {"type": "Complete", "status": "False"}]}
    written = objects.completed(status, generation=1, now=builders.NOW)
    assert [(each["type"], each["status"]) for each in written["conditions"]] == [
        ("HeldTogether", "True"), ("Complete", "True"),
    ]  # fmt: skip


@pytest.mark.parametrize("phase", sorted(objects.FINAL))
def test_final_status_has_complete_condition(phase: str) -> None:
    written = objects.completed({"phase": phase}, generation=2, now=builders.NOW)
    (condition,) = written["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Complete", "True", phase)
    assert condition["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    ended = objects.completed(
        {"phase": phase, "completionTime": "2023-11-14T22:00:00Z"}, generation=2, now=builders.NOW
    )
    assert ended["conditions"][0]["lastTransitionTime"] == "2023-11-14T22:00:00Z"


FORGED = {
    "list": "[]",
    "deep": "[" * 100_000,
    "trigger": '{"trigger": "text"}',
    "code": '{"trigger": {"code": {}}}',
    "time": '{"trigger": {"time": "soon"}}',
    "start": '{"startTime": 5}',
    "total": '{"members": {"total": "many"}}',
    "infinite": '{"resume": {"startedAt": -Infinity}}',
    "huge": '{"resume": {"startedAt": 1e300}}',
    "whole": '{"resume": {"startedAt": ' + "9" * 400 + "}}",
    "gang": '{"resume": {"gang": 5}}',
    "pod": '{"resume": {"pod": [{}, {}, {}]}}',
    "exit": '{"resume": {"exitCode": {}}}',
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_forged_first_status_is_invalid(forged: str) -> None:
    annotations = {**builders.new_round().annotations(), names.ROUND: forged}
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):  # errors that common.kube.informer handles
        objects.parse(builders.obj(annotations=annotations))


@pytest.mark.parametrize(
    ("name", "text"),
    [(names.ATTEMPT, "0"), (names.ATTEMPT, str(2**31)), (names.ATTEMPT, "-1"), (names.EPOCH, str(2**64))],
)
def test_out_of_range_numbers_are_invalid(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="is not from"):
        objects.parse(builders.obj(annotations={**builders.new_round().annotations(), name: text}))


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00+99:99", "0000-01-01T00:00:00Z"])
def test_times_accepted_by_server_may_be_invalid(text: str) -> None:
    for times in ({"startTime": text}, {"completionTime": text}, {"trigger": {"time": text}}):
        with pytest.raises(ValueError):  # noqa: PT011 - an error that common.kube.informer handles
            objects.parse({**builders.obj(), "status": {"phase": "Done", **times}})


def test_final_status_is_never_read_from_annotation() -> None:
    new = builders.new_round(status={**builders.STATUS, "slowest": "none", "conditions": 5})
    assert {"slowest", "conditions"}.isdisjoint(builders.of_round(new).status)


def test_detail_is_cut_to_the_conditions_limit() -> None:
    status = {"phase": "Refused", "decision": {"detail": "x" * 300_000}}
    (condition,) = objects.completed(status, generation=1, now=builders.NOW)["conditions"]
    assert len(condition["message"]) == 1024


@pytest.mark.parametrize(
    "cause",
    [
        controller_builders.fault(0),
        Request(builders.GANG, by="team/a", reason="new data", at=builders.NOW, max_unavailable=2),
    ],
)
def test_first_status_of_rounds_is_valid(cause: Cause) -> None:
    decision = Decision(Kind.IN_PLACE, Reason.MEMBER_FAILED)
    members = controller_builders.gang(3)
    ref = RoundRef("team", "a", builders.GANG, 1)
    first = machine.begin(ref, cause=cause, decision=decision, members=members, nodes={}, now=builders.NOW)
    found = builders.of_round(builders.new_round(status=status.render(first.round)))
    kept = status.parse(found.status, created_at=found.created_at)
    assert (kept.cause, kept.decision) == (cause, decision)
