"""Work on one of many objects that ends with an internal error does not end the leader's term."""

import asyncio
from collections import deque
from types import SimpleNamespace as Thing

import pytest

from kubemend.common.kube.changes import ChangeKind
from kubemend.common.kube.event_recorder import EventRecorder
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.gang_worker import GangWorker
from kubemend.controller.coordinator.round_runner import RoundRunner
from kubemend.controller.coordinator.single_pods import SinglePods
from kubemend.controller.hub.server import Hub
from kubemend.controller.hub.session_registry import SessionRegistry
from kubemend.controller.jobsets.placement_reconciler import _Board as Board
from kubemend.controller.jobsets.running import JobSets
from kubemend.controller.restarts.pod_replacer import Outcome
from kubemend.controller.restarts.store import RestartStore
from kubemend.controller.watches.members import Members
from kubemend.controller.watches.nodes import Nodes
from tests.environments.containment import Case, OverError, broken, first, later, nothing, waits

POD = Thing(uid="uid", namespace="team", name="w-0")
RESTART = Thing(
    id="team/r", uid="uid", deleting=False, gang="gang", ref=None, status={}, is_round=False, is_finished=False
)
RESULT = pb.StepResult(round="team/r", pod=pb.Pod(namespace="team", name="w-0", uid="uid"))
SESSION = Thing(node="node")


def cases() -> list[Case]:
    runner = Thing(id="team/r", round=Thing(members={"uid": None}), submit=broken, give_up=broken)
    dependencies = Thing(
        restarts=Thing(restarts=broken, set_status=broken),
        jobsets=Thing(ended=broken),
        now=lambda: 0.0,
        metrics=Thing(rounds_active=Thing(dec=nothing)),
        members=Thing(of_gang=broken),
        gpus=Thing(forget=nothing),
    )
    return [
        Case(GangCoordinator, "received", (SESSION, pb.AgentMessage(result=RESULT)), fields={"_handle_result": broken}),
        Case(
            GangCoordinator,
            "received",
            (SESSION, pb.AgentMessage(samples=pb.Samples())),
            fields={"_stragglers": Thing(record=broken)},
        ),
        Case(
            GangCoordinator,
            "hello",
            (SESSION, pb.Hello(results=[RESULT, RESULT])),
            errors=2,
            fields={"_term": Thing(epoch=1), "_handle_result": broken, "_report_node": nothing},
        ),
        Case(
            GangCoordinator,
            "replaced",
            (POD, Outcome.GONE, ""),
            fields={"_workers": {"gang": Thing(runner=runner)}, "_dependencies": dependencies},
        ),
        Case(GangCoordinator, "_not_resumed", (RESTART,), {"reason": "r"}, fields={"_dependencies": dependencies}),
        Case(
            GangCoordinator,
            "_restart_changed",
            (Thing(kind=ChangeKind.GONE, restart=RESTART),),
            fields={"_single_pods": Thing(withdraw=nothing), "_workers": {"gang": Thing(withdraw=broken)}},
        ),
        Case(
            GangCoordinator,
            "_request",
            (RESTART,),
            errors=2,
            fields={"_accept": broken, "_dependencies": dependencies},
        ),
        Case(
            GangWorker,
            "give_up",
            errors=3,
            fields={
                "_queue": Thing(take_all=first(["a", "b"])),
                "_gang": Thing(key="gang"),
                "_refuse_by_internal_error": broken,
                "_runner": runner,
            },
        ),
        Case(
            RoundRunner,
            "give_up",
            errors=3,
            fields={"_dependencies": dependencies, "drop": nothing, "_round": Thing(ref=runner), "_over": broken},
        ),
        Case(
            SinglePods,
            "_give_up",
            ({"a": RESTART, "b": RESTART},),
            {"reason": "r"},
            errors=2,
            fields={"_is_resumed": nothing, "_dependencies": dependencies},
        ),
        Case(
            SessionRegistry,
            "leave",
            (SESSION,),
            fields={
                "_streams": {"node": SESSION},
                "_metrics": Thing(sessions=Thing(set=nothing)),
                "_listener": Thing(disconnected=broken),
            },
        ),
        Case(Hub, "_review_one", (SESSION, asyncio.Semaphore()), fields={"_service": Thing(review=broken)}),
        Case(
            RestartStore,
            "_apply",
            (Thing(kind=ChangeKind.APPEARED, value=RESTART),),
            errors=2,
            fields={
                "_by_id": {},
                "_by_gang": {},
                "_count_seen": nothing,
                "_changed": asyncio.Event(),
                "_listeners": [broken, broken],
            },
        ),
        Case(
            RestartStore,
            "_sweep",
            errors=2,
            fields={
                "wait_synced": waits,
                "_changed": asyncio.Event(),
                "_clock": first(100.0 * 24 * 3600),
                "_by_id": {"team/r": EXPIRED},
                "_keeping": Thing(ttl=1.0, newest=0),
                "_is_alive": lambda _: False,
                "_remove": broken,
                "_not_removed": {},
                "_close_superseded": broken,
                "_forget_old_gangs": first(OverError()),
            },
        ),
        Case(
            Members,
            "_resolve_vanished",
            ("uid",),
            fields={
                "_backoff": lambda: Thing(wait=later(OverError())),
                "_by_uid": {"uid": Thing(pod=POD)},
                "_is_watched": lambda _: False,
                "_try_resolve": broken,
            },
        ),
        Case(
            Members,
            "_notify",
            (Thing(member=Thing(pod=POD)),),
            errors=2,
            fields={"_listeners": [broken, broken]},
        ),
        Case(Nodes, "_notify", (Thing(name="node"),), errors=2, fields={"_listeners": [broken, broken]}),
        Case(
            JobSets,
            "_jobset_changed",
            (Thing(namespace="team", name="js"),),
            errors=2,
            fields={"_listeners": [broken, broken]},
        ),
        Case(JobSets, "_wanted_by", (Thing(namespace="team", name="js"),), fields={"_views": Thing(jobs=broken)}),
        Case(Board, "_release", (POD, "domain"), fields={"_patch": broken, "_going": {}}),
        Case(
            EventRecorder,
            "run",
            fields={
                "_report": nothing,
                "_entries": deque([Thing(path="/events", body={"reason": "r"}, at=0.0)]),
                "_clock": broken,
                "_queued": Thing(clear=first(OverError())),
            },
        ),
    ]


EXPIRED = Thing(
    id="team/r",
    uid="uid",
    is_finished=True,
    deleting=False,
    finished_at=0.0,
    spec=Thing(ttl_seconds=1),
    gang=None,
)
NAMES = [
    *("result", "samples", "hello", "recreated", "not-resumed", "withdrawn", "request", "gang", "round", "single-pod"),
    *("stream", "review", "listener-of-restarts", "expired", "vanished", "listener-of-members", "listener-of-nodes"),
    *("listener-of-jobsets", "wanted", "placement", "event"),
]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_error_about_one_object_does_not_end_the_term(number: int) -> None:
    all_cases = cases()
    assert len(all_cases) == len(NAMES)
    assert await all_cases[number].run() == all_cases[number].errors
