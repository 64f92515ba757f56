"""Gangs from pods and Restart objects, and their texts."""

import copy
import json
from typing import Any

import click
import pytest

from kubemend.cli import gangs_view, status_text
from kubemend.cli.gangs_view import GangView, Report, State
from kubemend.common.kube import timestamps
from tests.unit.cli import builders
from tests.unit.cli.builders import FAULTY, HEALTHY, UNKNOWN_DEVICES, pod, restart

NOW = timestamps.unix("2026-01-31T08:05:00Z") + 0.0
PLAIN = status_text.Style(now=NOW)

THREE = (
    pod("train-0", conditions=HEALTHY),
    pod("train-1", conditions=HEALTHY),
    pod(
        "train-2",
        node="node-b",
        conditions={**HEALTHY, "InPlaceRestart": ("True", "Swapped", "trainer restart 3 by swap in 60 ms")},
    ),
)


def status(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(dict(builders.DONE)), **parts}


def only(report: Report) -> GangView:
    (gang,) = report.gangs
    return gang


def test_gang_has_members_rounds_and_remaining_budget() -> None:
    gang = only(gangs_view.report(THREE, [restart("train-2-aa", attempt=2), restart()], now=NOW))
    assert str(gang.key) == "team/JobSet/train"
    assert [(member.pod, member.node, member.ready) for member in gang.members] == [
        ("train-0", "node-a", True),
        ("train-1", "node-a", True),
        ("train-2", "node-b", True),
    ]
    assert [each.name for each in gang.rounds] == ["train-3-1f2e", "train-2-aa"]
    assert gang.budget == gangs_view.BudgetView(left=8, limit=10, window=3600.0)
    assert gang.nodes == ("node-a", "node-b")
    assert gang.state is State.WELL


@pytest.mark.parametrize(
    ("member", "state"),
    [
        pytest.param(pod("x", conditions=HEALTHY), State.WELL, id="ready"),
        pytest.param(pod("x"), State.WELL, id="without-devices"),
        pytest.param(pod("x", phase="Succeeded", ready=False), State.WELL, id="completed"),
        pytest.param(pod("x", ready=False), State.ILL, id="not-ready"),
        pytest.param(pod("x", phase="Failed", ready=False), State.ILL, id="failed"),
        pytest.param(pod("x", phase="Pending", ready=False, node=""), State.ILL, id="not-scheduled"),
        pytest.param(pod("x", conditions=FAULTY), State.ILL, id="ready-on-a-bad-device"),
        pytest.param(pod("x", conditions=UNKNOWN_DEVICES), State.UNKNOWN, id="devices-unknown"),
        pytest.param(pod("x", phase="Strange", ready=False), State.ILL, id="an-unknown-phase"),
    ],
)
def test_gang_state_is_that_of_its_worst_member(member: dict[str, Any], state: State) -> None:
    report = gangs_view.report([pod("well", conditions=HEALTHY), member], [], now=NOW)
    assert (only(report).state, report.state) == (state, state)


def with_kubelets(name: str, *resources: dict[str, Any]) -> dict[str, Any]:
    """Return a pod for whose devices kubelet publishes a health."""
    made = pod(name, conditions=HEALTHY)
    allocated = [{"name": "nvidia.com/gpu", "resources": list(resources)}]
    made["status"]["containerStatuses"] = [{"name": "trainer", "allocatedResourcesStatus": allocated}]
    return made


def device(identity: str, health: str, message: str = "") -> dict[str, Any]:
    return {"resourceID": identity, "health": health, **({"message": message} if message else {})}


@pytest.mark.parametrize(
    ("resources", "shown"),
    [
        ([device("GPU-0", "Healthy")], "healthy"),
        ([device("GPU-0", "Healthy"), device("GPU-1", "Unknown")], "Unknown GPU-1"),
        ([device("GPU-0", "Unknown"), device("GPU-1", "Unhealthy", "ECC")], "Unhealthy GPU-1: ECC"),
        ([device(f"GPU-{n}", "Unhealthy") for n in range(1000)], "Unhealthy GPU-0 and 999 more"),
        ([device("GPU-0", "Melted")], "Unknown GPU-0"),
        ([device("\x1b[2JGPU", "Unhealthy", "a\nb")], "Unhealthy  [2JGPU: a b"),
    ],
)
def test_kubelets_own_view_of_devices_is_shown_next_to_kubemends(resources: list[dict[str, Any]], shown: str) -> None:
    report = gangs_view.report([with_kubelets("train-0", *resources), THREE[1]], [], now=NOW)
    head, first, second = status_text.details(only(report), report, style=PLAIN).splitlines()[2:5]
    assert head.endswith("KUBELET'S DEVICES")
    assert " healthy " in first
    assert first.endswith(f"  {shown}")
    assert second.endswith("-")
    (reported, *_), none = (
        member["allocatedResources"] for member in status_text.as_json(report)["gangs"][0]["members"]
    )
    assert reported["resource"] == "nvidia.com/gpu"
    assert none == []


def test_kubelets_column_is_missing_where_kubelet_publishes_nothing() -> None:
    report = gangs_view.report(THREE, [], now=NOW)
    assert "KUBELET" not in status_text.details(only(report), report, style=PLAIN)


def test_kubelets_view_of_another_form_is_not_shown() -> None:
    report = gangs_view.report([with_kubelets("train-0", {"health": "Unhealthy"})], [], now=NOW)
    assert only(report).members[0].kubelet == ()


def spare(status: str, reason: str, message: str, **fields: Any) -> dict[str, Any]:
    """Return a pod whose launcher keeps a spare."""
    return pod("train-0", conditions={**HEALTHY, "WarmSpare": (status, reason, message)}, **fields)


@pytest.mark.parametrize(
    ("status", "reason", "message", "shown"),
    [
        ("True", "Ready", "trainer: ready, 1.2 GiB", "trainer: ready, 1.2 GiB"),
        ("False", "DeviceOpened", "trainer: it holds a\x1b[2J", "DeviceOpened: trainer: it holds a [2J"),
        ("Unknown", "LauncherSilent", "trainer: no answer", "LauncherSilent: trainer: no answer"),
    ],
)
def test_spares_are_shown_and_are_no_fault(status: str, reason: str, message: str, shown: str) -> None:
    report = gangs_view.report([spare(status, reason, message), THREE[1]], [], now=NOW)
    head, first, second = status_text.details(only(report), report, style=PLAIN).splitlines()[2:5]
    assert head.endswith("WARM SPARE")
    assert first.endswith(f"  {shown}")
    assert second.endswith("-")
    reported, none = (member["warmSpare"] for member in status_text.as_json(report)["gangs"][0]["members"])
    assert (reported["status"], reported["reason"]) == (status, reason)
    assert none is None
    assert report.state is State.WELL


def test_a_pod_that_does_not_run_has_no_spare() -> None:
    over = spare("True", "Ready", "trainer: ready", phase="Succeeded", ready=False)
    report = gangs_view.report([over], [], now=NOW)
    assert only(report).members[0].spare is None
    assert "SPARE" not in status_text.details(only(report), report, style=PLAIN)


def test_the_strictest_annotation_limits_the_budget() -> None:
    pods = [pod("a", annotations={"kubemend.io/max-restarts": "3"}), pod("b")]
    assert only(gangs_view.report(pods, [restart()], now=NOW)).budget == gangs_view.BudgetView(2, 3, 3600.0)


def test_rounds_from_before_the_window_cost_nothing() -> None:
    later = NOW + 3700
    budget = only(gangs_view.report(THREE, [restart()], now=later)).budget
    assert budget is not None
    assert budget.left == 10


def test_refused_and_pending_requests_cost_nothing() -> None:
    refused = restart("asked-1", attempt=0, status={"phase": "Refused"})
    asked = restart("asked-2", attempt=0, status=None)
    gang = only(gangs_view.report(THREE, [refused, asked], now=NOW))
    assert gang.budget is not None
    assert gang.budget.left == 10
    assert [each.phase for each in gang.rounds] == ["Requested", "Refused"]


def test_invalid_annotation_is_noted_and_hides_the_budget() -> None:
    gang = only(gangs_view.report([pod("a", annotations={"kubemend.io/max-restarts": "many"})], [], now=NOW))
    assert gang.budget is None
    assert "max-restarts is 'many'" in gang.notes[0]


def test_unreadable_rounds_give_no_budget_and_unknown_state() -> None:
    report = gangs_view.report(THREE, None, now=NOW, notes=("no rights",))
    assert only(report).budget is None
    assert (only(report).state, report.state) == (State.WELL, State.UNKNOWN)


def test_restart_object_of_unknown_format_is_named_and_omitted() -> None:
    strange = restart()
    del strange["metadata"]["uid"]
    report = gangs_view.report(THREE, [strange], now=NOW)
    assert only(report).rounds == ()
    assert "Restart team/train-3-1f2e has an unknown format" in report.notes[0]
    assert report.state is State.UNKNOWN


def test_pods_without_a_gang_are_omitted() -> None:
    alone = pod("alone")
    alone["metadata"]["labels"] = {}
    assert gangs_view.report([alone], [], now=NOW) == Report(())


def test_a_gang_without_pods_still_has_its_rounds() -> None:
    gang = only(gangs_view.report([], [restart()], now=NOW))
    assert (gang.members, gang.is_ours) == ((), True)


def test_gangs_are_a_line_each() -> None:
    report = gangs_view.report(THREE, [restart()], now=NOW)
    lines = [line.split("  ") for line in status_text.overview(report, style=PLAIN).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["NAMESPACE", "GANG", "MEMBERS", "NODES", "DEVICES", "BUDGET", "LAST ROUND", "AGE"],
        ["team", "JobSet/train", "3/3", "2", "3 healthy", "9 of 10 in 1 h", "3: Done in 340 ms, Xid79", "5m"],
    ]


def test_unmanaged_gangs_are_only_counted() -> None:
    others = [pod("a", gang="one", opted_in=False), pod("b", gang="two", opted_in=False)]
    report = gangs_view.report([*THREE, *others], [], now=NOW)
    drawn = status_text.overview(report, style=PLAIN)
    assert "JobSet/one" not in drawn
    assert "note: 2 other gangs have not opted in (annotation kubemend.io/restart: InPlace)" in drawn


def test_missing_gangs_are_reported() -> None:
    assert status_text.overview(gangs_view.report([], [], now=NOW), style=PLAIN) == "no gang"


DETAILS = """\
team/JobSet/train: 2/3 members ready on 2 nodes, budget 9 of 10 in 1 h

MEMBER    NODE    STATE               RESTARTS    DEVICES                                      LAST RESTART
train-0   node-a  Ready               3           healthy                                      -
train-1   node-a  Ready               3           Xid79: GPU-5ac9: Xid 79; action RebootNode   -
train-2   node-b  Running, not ready  3           Hangs: GPU-5ac9: NVML does not answer        -

ATTEMPT    RESTART       PHASE    CAUSE    MEMBER    NODE    DECISION                TOOK    AGE
3          train-3-1f2e  Done     Xid79    train-2   node-b  InPlace (MemberFailed)  340 ms  5m

last: GPU 3 has fallen off the bus
decision: all members stay where they are
its members: kubemend timeline train-3-1f2e -n team"""

MIXED = (
    pod("train-0", conditions=HEALTHY),
    pod("train-1", conditions=FAULTY),
    pod("train-2", node="node-b", ready=False, conditions=UNKNOWN_DEVICES),
)


def test_one_gang_is_shown_with_all_its_members_and_rounds() -> None:
    report = gangs_view.report(MIXED, [restart()], now=NOW)
    drawn = status_text.details(only(report), report, style=PLAIN)
    assert [" ".join(line.split()) for line in drawn.splitlines()] == [
        " ".join(line.split()) for line in DETAILS.splitlines()
    ]


def test_of_many_rounds_the_newest_are_shown_and_the_others_counted() -> None:
    rounds = [restart(f"train-{number}-ab", attempt=number, status=status(attempt=number)) for number in range(1, 15)]
    report = gangs_view.report(THREE, rounds, now=NOW)
    drawn = status_text.details(only(report), report, style=PLAIN)
    assert "train-14-ab" in drawn
    assert "train-4-ab" not in drawn
    assert "note: 4 older rounds are not shown: kubectl get restarts -n team" in drawn


def test_a_round_in_progress_has_no_timeline_yet() -> None:
    going = restart(status={"phase": "Stopping", "startTime": builders.CREATED, "trigger": {"message": "Xid 79"}})
    report = gangs_view.report(THREE, [going], now=NOW)
    assert status_text.details(only(report), report, style=PLAIN).endswith("last: Xid 79\nit is in progress")


def test_refused_request_has_its_reason_and_no_timeline() -> None:
    decision = {"kind": "Observe", "reason": "NotOptedIn", "detail": "train-1 has not opted in"}
    refused = restart("asked-1", attempt=0, status={"phase": "Refused", "decision": decision})
    report = gangs_view.report(THREE, [refused], now=NOW)
    assert status_text.details(only(report), report, style=PLAIN).endswith("decision: train-1 has not opted in")


def test_colours_change_nothing_but_the_colours() -> None:
    report = gangs_view.report(MIXED, [restart()], now=NOW)
    colourful = status_text.Style(now=NOW, colour=True)
    for draw in (status_text.overview, lambda report, style: status_text.details(only(report), report, style=style)):
        coloured = draw(report, style=colourful)
        assert coloured != draw(report, style=PLAIN)
        assert click.unstyle(coloured) == draw(report, style=PLAIN)


def test_an_object_has_all_that_the_tables_have() -> None:
    report = gangs_view.report(MIXED, [restart()], now=NOW)
    reported = json.loads(json.dumps(status_text.as_json(report)))
    assert (reported["state"], reported["notes"]) == ("Ill", [])
    (gang,) = reported["gangs"]
    assert (gang["namespace"], gang["kind"], gang["name"]) == ("team", "JobSet", "train")
    assert gang["budget"] == {"left": 9, "limit": 10, "window": 3600.0}
    assert [(each["pod"], each["state"]) for each in gang["members"]] == [
        ("train-0", "Well"),
        ("train-1", "Ill"),
        ("train-2", "Ill"),
    ]
    assert gang["members"][1]["devicesHealthy"]["reason"] == "Xid79"
    (last,) = gang["rounds"]
    assert last["trigger"] == {
        "code": "Xid79",
        "message": "GPU 3 has fallen off the bus",
        "member": "train-2",
        "node": "node-b",
    }
    assert (last["restart"], last["attempt"], last["totalMilliseconds"]) == ("train-3-1f2e", 3, 340)
    assert last["decision"] == {
        "kind": "InPlace",
        "reason": "MemberFailed",
        "detail": "all members stay where they are",
    }


def test_untrusted_texts_do_not_move_the_cursor() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\nline"
    reported = {
        "phase": "Failed",
        "trigger": dict.fromkeys(("code", "member", "node", "message"), evil),
        "decision": dict.fromkeys(("kind", "reason", "detail"), evil),
    }
    condition = {"type": "kubemend.io/DevicesHealthy", "status": "False", "reason": evil, "message": evil}
    member = pod("a")
    member["status"]["conditions"] = [condition]
    begun = restart("b", status=None, attempt=4)
    begun["metadata"]["annotations"]["kubemend.io/round"] = json.dumps({**reported, "phase": evil})
    report = gangs_view.report([member], [restart(status=reported), begun], now=NOW)
    style = status_text.Style(now=NOW)
    texts = (status_text.overview(report, style=style), status_text.details(only(report), report, style=style))
    assert all(line.isprintable() for text in texts for line in text.splitlines())
    assert "[2J" in texts[1]
