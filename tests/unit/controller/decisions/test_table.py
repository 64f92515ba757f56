"""The table of decisions: which rule decides, and that none deletes a protected pod."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.coordination import FaultKind
from kubemend.controller.decisions import facts as facts_module
from kubemend.controller.decisions import table
from kubemend.controller.decisions.facts import Decision, Facts, Kind, Reason
from kubemend.controller.gangs import members
from kubemend.controller.gangs.budget import Past
from kubemend.controller.model.faults import Cause, Request
from kubemend.controller.model.members import Member, NodeName, NodeView, Owner, PodPhase
from tests.unit.controller import builders
from tests.unit.controller.builders import GANG, NOW

SIDECAR = {**builders.OPTED_IN, "jobset.sigs.k8s.io/in-place-restart-attempt": "0"}
"""Annotations of a pod that a sidecar of upstream's JobSet controller restarts in place."""
WORKFLOW = Owner("argoproj.io", "Workflow", "steps", "uid-w")


def facts(**changes: Any) -> Facts:
    return replace(Facts(cause=builders.fault(), members=builders.gang(3), nodes=builders.nodes(3)), **changes)


def decide(**changes: Any) -> Decision:
    return table.decide(facts(**changes), now=NOW)


def with_one(index: int, **changes: Any) -> tuple[Member, ...]:
    """Return a gang of three, one of which is different."""
    return tuple(builders.member(each, **(changes if each == index else {})) for each in range(3))


def request(**changes: Any) -> Request:
    return replace(Request(GANG, "team/again", "new weights", NOW), **changes)


def lost(index: int, **changes: Any) -> dict[NodeName, NodeView]:
    name = NodeName(f"node-{index}")
    return {**builders.nodes(3), name: replace(NodeView(name, ready=None), **changes)}


def only_lost(index: int) -> dict[NodeName, NodeView]:
    name = NodeName(f"node-{index}")
    return {name: lost(index)[name]}


def leaving(*indexes: int) -> dict[NodeName, NodeView]:
    """Return the nodes, of which some are about to have their maintenance."""
    names = {NodeName(f"node-{index}") for index in indexes}
    return {name: replace(node, leaving=name in names) for name, node in builders.nodes(3).items()}


def evicted(*indexes: int, **changes: Any) -> tuple[Member, ...]:
    """Return a gang, in which the eviction of some members is requested."""
    return tuple(
        builders.member(each, eviction_requested=True, **changes) if each in indexes else builders.member(each)
        for each in range(3)
    )


ALL_FAILED = tuple(builders.member(each, phase=PodPhase.FAILED) for each in range(3))
ONE_AN_HOUR = with_one(0, annotations={**builders.OPTED_IN, "kubemend.io/max-restarts": "1"})
YOUNG = tuple(Past(NOW - age, NOW - age - 1.0, "train/0", "Exit1") for age in (40.0, 30.0, 3.0))
FULL = tuple(Past(NOW - 100.0 * age, NOW - 100.0 * age - 1.0) for age in range(10, 0, -1))


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"cause": request()}, Kind.IN_PLACE, Reason.REQUESTED),
        # nothing to do, or no longer
        ({"members": ()}, Kind.ALONE, Reason.NOT_A_GANG),
        ({"members": builders.gang(1)}, Kind.ALONE, Reason.NOT_A_GANG),
        ({"cause": request(), "members": builders.gang(1)}, Kind.IN_PLACE, Reason.REQUESTED),
        ({"cause": builders.fault(7)}, Kind.OBSERVE, Reason.MEMBER_GONE),
        ({"members": with_one(0, deleting=True)}, Kind.OBSERVE, Reason.MEMBER_GONE),
        ({"members": with_one(0, phase=PodPhase.SUCCEEDED)}, Kind.OBSERVE, Reason.MEMBER_COMPLETED),
        ({"members": (*builders.gang(3), builders.member(0, generation=1))}, Kind.OBSERVE, Reason.MEMBER_GONE),
        ({"cause": builders.fault(exit_code=0)}, Kind.OBSERVE, Reason.MEMBER_COMPLETED),
        ({"closed": "Suspended"}, Kind.OBSERVE, Reason.SUSPENDED),
        ({"closed": "Suspended", "cause": request()}, Kind.OBSERVE, Reason.SUSPENDED),
        ({"members": with_one(1, annotations=SIDECAR)}, Kind.OBSERVE, Reason.JOBSET_RESTARTS),
        ({"members": with_one(1, annotations=SIDECAR), "cause": request()}, Kind.OBSERVE, Reason.JOBSET_RESTARTS),
        (
            {"members": with_one(1, annotations=SIDECAR, phase=PodPhase.SUCCEEDED)},
            Kind.IN_PLACE,
            Reason.MEMBER_FAILED,
        ),
        ({"closed": "Recreating"}, Kind.OBSERVE, Reason.JOBSET_CLOSED),
        ({"cause": request(), "members": ()}, Kind.OBSERVE, Reason.MEMBER_GONE),
        # no opt-in
        ({"members": with_one(1, annotations={})}, Kind.OBSERVE, Reason.NOT_OPTED_IN),
        ({"members": with_one(1, annotations={}), "opted_in_namespaces": frozenset({"team"})}, Kind.IN_PLACE, None),
        ({"members": with_one(1, annotations={}, phase=PodPhase.SUCCEEDED)}, Kind.IN_PLACE, None),
        ({"members": with_one(1, annotations={}, deleting=True)}, Kind.IN_PLACE, None),
        ({"members": with_one(1, annotations={}, phase=PodPhase.FAILED)}, Kind.OBSERVE, Reason.NOT_OPTED_IN),
        ({"members": with_one(1, annotations={"kubemend.io/restart": "yes"})}, Kind.OBSERVE, Reason.BAD_ANNOTATION),
        ({"dry_run": True}, Kind.OBSERVE, Reason.DRY_RUN),
        # devices
        (
            {"cause": builders.fault(kind=FaultKind.DEVICE, action_class="RestartApp", exit_code=None)},
            Kind.IN_PLACE,
            Reason.MEMBER_FAILED,
        ),
        (
            {"cause": builders.fault(kind=FaultKind.DEVICE, action_class="Observe", exit_code=None)},
            Kind.OBSERVE,
            Reason.OBSERVED_ONLY,
        ),
        ({"cause": builders.fault(action_class="AskDriver")}, Kind.POSTPONE, Reason.DEVICE_NOT_PROVEN),
        ({"cause": builders.fault(action_class="Replace")}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        # recreation
        ({"nodes": lost(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"nodes": lost(1, ready=False)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"nodes": lost(1, ready=True, out_of_service=True)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"cause": request(), "nodes": lost(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"members": ALL_FAILED}, Kind.RECREATE_ALL, Reason.MEMBERS_LOST),
        ({"members": ALL_FAILED, "cause": request()}, Kind.RECREATE_ALL, Reason.MEMBERS_LOST),
        ({"nodes": lost(1), "members": with_one(1, phase=PodPhase.SUCCEEDED)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"nodes": {}}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"members": with_one(1, phase=PodPhase.FAILED)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"cause": request(recreate=True)}, Kind.RECREATE_ALL, Reason.RECREATION_REQUESTED),
        ({"members": with_one(1, owner=None), "nodes": lost(1)}, Kind.FAIL, Reason.NOT_REPLACEABLE),
        ({"members": with_one(1, owner=None)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"members": with_one(1, owner=WORKFLOW), "nodes": lost(1)}, Kind.FAIL, Reason.NOT_REPLACEABLE),
        ({"members": with_one(1, owner=WORKFLOW)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        # maintenance
        ({"nodes": leaving(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.MAINTENANCE_PLANNED),
        ({"nodes": leaving(0, 1, 2)}, Kind.RECREATE_ALL, Reason.MAINTENANCE_PLANNED),
        ({"nodes": leaving(1), "cause": request()}, Kind.IN_PLACE_AND_RECREATE, Reason.MAINTENANCE_PLANNED),
        ({"nodes": leaving(0, 1, 2), "cause": request(max_unavailable=1)}, Kind.IN_PLACE, Reason.REQUESTED),
        ({"nodes": {**leaving(1), **only_lost(2)}}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"nodes": leaving(1), "cause": request(recreate=True)}, Kind.RECREATE_ALL, Reason.RECREATION_REQUESTED),
        ({"nodes": leaving(1), "members": with_one(1, owner=None)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"nodes": leaving(1), "members": with_one(1, phase=PodPhase.SUCCEEDED)}, Kind.IN_PLACE, None),
        ({"nodes": leaving(1), "history": FULL}, Kind.FAIL, Reason.BUDGET_SPENT),
        ({"nodes": leaving(0), "members": builders.gang(1)}, Kind.RECREATE_ALL, Reason.MAINTENANCE_PLANNED),
        # evictions
        ({"members": evicted(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.EVICTION_REQUESTED),
        ({"members": evicted(0, 1, 2), "cause": request()}, Kind.RECREATE_ALL, Reason.EVICTION_REQUESTED),
        ({"members": evicted(1), "nodes": leaving(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.MAINTENANCE_PLANNED),
        ({"members": evicted(1), "nodes": only_lost(1)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"members": evicted(1, phase=PodPhase.SUCCEEDED)}, Kind.IN_PLACE, None),
        ({"members": evicted(1), "history": FULL}, Kind.FAIL, Reason.BUDGET_SPENT),
        ({"members": evicted(1), "nodes": only_lost(2)}, Kind.IN_PLACE_AND_RECREATE, Reason.MEMBERS_LOST),
        ({"members": evicted(1), "cause": request(max_unavailable=1)}, Kind.IN_PLACE, Reason.REQUESTED),
        ({"members": evicted(1, owner=None)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        # budget
        ({"limit": 20, "used": 3, "members": ONE_AN_HOUR, "history": YOUNG[:1]}, Kind.FAIL, Reason.BUDGET_SPENT),
        ({"history": YOUNG}, Kind.POSTPONE, Reason.NO_PROGRESS),
        ({"history": tuple(replace(each, slot="", code="") for each in YOUNG)}, Kind.POSTPONE, Reason.BACKOFF),
        ({"history": FULL}, Kind.FAIL, Reason.BUDGET_SPENT),
        ({"history": FULL, "cause": request()}, Kind.IN_PLACE, Reason.REQUESTED),
        # a JobSet's limit overrides the rounds per window, but not the waits
        ({"limit": 20, "used": 10, "history": FULL}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
        ({"limit": 20, "used": 3, "history": YOUNG}, Kind.POSTPONE, Reason.NO_PROGRESS),
        ({"limit": 2, "used": 2}, Kind.FAIL, Reason.REACHED_MAX_RESTARTS),
        ({"limit": 2, "used": 2, "cause": request()}, Kind.IN_PLACE, Reason.REQUESTED),
        ({"limit": 0, "members": builders.gang(1)}, Kind.FAIL, Reason.REACHED_MAX_RESTARTS),
        ({"limit": 1, "members": builders.gang(1)}, Kind.IN_PLACE, Reason.MEMBER_FAILED),
    ],
)
def test_each_rule_decides_its_cases(changes: dict[str, Any], kind: Kind, reason: Reason | None) -> None:
    decision = decide(**changes)
    assert decision.kind is kind, decision
    assert reason is None or decision.reason is reason


def test_member_whose_node_is_leaving_moves_in_the_round_and_the_others_stay() -> None:
    decision = decide(nodes=leaving(1))
    assert decision.recreate == frozenset({builders.member(1).slot})
    assert "maintenance" in decision.detail
    both = decide(nodes={**leaving(1), **only_lost(2)})
    assert both.recreate == frozenset({builders.member(1).slot, builders.member(2).slot})


@pytest.mark.parametrize(
    ("first", "second", "reason", "detail"),
    [
        (1, 2, Reason.EVICTION_REQUESTED, "such as train/1: an EvictionRequest names its pod"),
        (2, 1, Reason.MAINTENANCE_PLANNED, "such as train/1: maintenance of its node is planned"),
    ],
)
def test_reason_of_several_moves_is_that_of_the_member_in_the_detail(
    first: int, second: int, reason: Reason, detail: str
) -> None:
    decision = decide(members=evicted(first), nodes=leaving(second))
    assert (decision.kind, decision.reason) == (Kind.IN_PLACE_AND_RECREATE, reason)
    assert decision.detail == f"2 of 3 are recreated, {detail}"
    assert decision.recreate == {"train/1", "train/2"}


def test_rolling_request_recreates_only_members_on_lost_nodes() -> None:
    decision = decide(nodes={**leaving(1), **only_lost(2)}, cause=request(max_unavailable=1))
    assert decision.recreate == frozenset({builders.member(2).slot})


def test_fatal_exit_code_is_left_to_workload() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "1, 42"}
    decision = decide(members=with_one(2, annotations=annotations))
    assert (decision.kind, decision.reason) == (Kind.FAIL, Reason.FATAL_EXIT_CODE)
    other = decide(members=with_one(2, annotations=annotations), cause=builders.fault(exit_code=2))
    assert other.kind is Kind.IN_PLACE


@pytest.mark.parametrize("kind", FaultKind)
def test_container_without_restart_costs_gang_nothing(kind: FaultKind) -> None:
    members = tuple(replace(each, targets=frozenset({"trainer"})) for each in builders.gang(3))
    code = 1 if kind is FaultKind.EXIT else None
    beside = builders.fault(0, kind=kind, container="debugger-x7k2p", exit_code=code, action_class="RestartApp")
    decision = table.decide(Facts(cause=beside, members=members, nodes=builders.nodes(3)), now=builders.NOW)
    assert (decision.kind, decision.reason) == (Kind.OBSERVE, Reason.NOT_SELECTED)
    for container in ("trainer", ""):  # a fault without a container concerns the pod
        hit = replace(beside, container=container)
        decision = table.decide(Facts(cause=hit, members=members, nodes=builders.nodes(3)), now=builders.NOW)
        assert decision.kind.begins_round


def test_gang_may_ask_for_fewer_rounds() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/max-restarts": "1"}
    past = (Past(NOW - 1000.0, NOW - 1001.0),)
    decision = decide(members=with_one(2, annotations=annotations), history=past)
    assert (decision.kind, decision.reason) == (Kind.FAIL, Reason.BUDGET_SPENT)
    assert "1 rounds within 1 h; it opens again at" in decision.detail


def test_gang_that_allows_no_round_is_never_restarted() -> None:
    decision = decide(members=with_one(2, annotations={**builders.OPTED_IN, "kubemend.io/max-restarts": "0"}))
    assert (decision.kind, decision.reason) == (Kind.FAIL, Reason.BUDGET_SPENT)
    assert decision.detail == "the gang's budget is used up: no restart is allowed"


def test_backoff_has_end_and_common_cause_in_detail() -> None:
    decision = decide(history=YOUNG)
    assert decision.retry_at == NOW + 7.0
    assert "opens again at 2023-11-14T22:13:27Z" in decision.detail
    assert "all in train/0" in decision.detail


def test_only_lost_members_are_recreated() -> None:
    assert decide(nodes=lost(1)).recreate == {"train/1"}
    assert decide(cause=builders.fault(action_class="RebootNode"), nodes=lost(1)).recreate == {"train/0", "train/1"}


def test_pod_being_deleted_is_not_recreated_again() -> None:
    decision = decide(members=with_one(1, deleting=True), nodes=lost(1))
    assert (decision.kind, decision.recreate) == (Kind.IN_PLACE, frozenset())


def test_failed_pod_with_replacement_is_ignored() -> None:
    replaced = (*builders.gang(3), builders.member(1, generation=9, phase=PodPhase.FAILED))
    assert decide(members=replaced).kind is Kind.IN_PLACE


def test_dry_run_reports_the_decision() -> None:
    assert decide(dry_run=True, nodes=lost(1)).detail.startswith("it would be InPlaceAndRecreate: 1 of 3 are recreated")


@pytest.mark.parametrize(("action", "moves"), [("RestartApp", False), ("ResetDevice", True), ("None", False)])
def test_action_class_decides_about_recreation(action: str, moves: bool) -> None:
    assert facts_module.needs_recreation(builders.fault(action_class=action)) is moves


def test_owner_of_unknown_kind_is_named() -> None:
    decision = decide(members=with_one(1, owner=WORKFLOW), nodes=lost(1))
    assert decision.detail.startswith(
        "train/1 cannot be restarted where it is, and its pod is not deleted: OwnerMayNotRecreate (kind Workflow.argo"
    )


@given(st.data())
def test_pod_without_opt_in_or_owner_is_never_deleted(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 4))
    gang = tuple(
        builders.member(
            index,
            phase=data.draw(st.sampled_from(PodPhase)),
            deleting=data.draw(st.booleans()),
            owner=data.draw(st.sampled_from((None, builders.OWNER, replace(builders.OWNER, api_group="example.com")))),
            annotations=data.draw(st.sampled_from(({}, builders.OPTED_IN))),
        )
        for index in range(size)
    )
    ready = st.sampled_from((True, False, None))
    views = {name: replace(view, ready=data.draw(ready)) for name, view in builders.nodes(size).items()}
    causes: tuple[Cause, ...] = (builders.fault(), builders.fault(action_class="Replace"), request(recreate=True))
    cause = data.draw(st.sampled_from(causes))
    decision = table.decide(Facts(cause=cause, members=gang, nodes=views), now=NOW)
    by_slot = members.by_slot(gang)
    assert decision.recreate <= by_slot.keys()
    assert all(members.bar(by_slot[slot]) is None for slot in decision.recreate)
    assert not decision.recreate or decision.kind.begins_round
