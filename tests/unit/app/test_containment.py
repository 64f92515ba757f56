"""Work on one of many objects that ends with an internal error ends nothing else, wherever the agent does such work."""

import contextlib
from types import SimpleNamespace as Thing

import pytest

from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.stop_requests import _Reader as Reader
from kubemend.agent.devices.degradation_expiry import DegradationExpiry
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.faults.exits import Exits
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.pipeline import FindingPipeline
from kubemend.agent.hub.client import Hub
from kubemend.agent.hub.connection import Connection
from kubemend.agent.hub.failed_programs import FailedPrograms
from kubemend.agent.hub.members import Members
from kubemend.agent.hub.outbox import Outbox
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.reporters.device_taints import DeviceTaintReporter
from kubemend.agent.reporters.events import EventReporter
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.reporters.restart_counts import RestartCounts
from kubemend.agent.restart import options
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.replay import Replay
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.pod_hold import PodHolder
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.kernel_log import KernelLogSource
from kubemend.agent.sources.launchers import LauncherWatch
from kubemend.agent.sources.pods import PodWatch
from tests.environments.containment import Case, OverError, broken, first, happened, later, nothing, waits

READS = Thing(
    ref=Thing(uid="uid"),
    reads_restarts=True,
    deleting=False,
    is_over=False,
    annotations={options.RESTARTS: "old"},
    containers=(),
)
REF = Thing(uid="uid", pod=Thing(uid="uid"))
VIEW = Thing(ref=REF, id="id")
FINDING = Thing(title="Xid 31", device="GPU-1", observed_at=1.0)
RECORDED = Thing(finding=FINDING, device="GPU-1")
XID = b"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python\n"


def cases() -> list[Case]:
    kept = {"a": Thing(id="a", disarm=broken, freezing=None), "b": Thing(id="b", disarm=broken, freezing=None)}
    hold = {"_on": True, "_end": nothing, "_containers": kept}
    return [
        Case(Exits, "_handle", (Thing(container=VIEW),), fields={"_ended": broken}),
        Case(Exits, "restart", (Thing(container=VIEW),), fields={"_restart": broken}),
        Case(LostDevices, "_report_all", ("GPU-1",), {"earlier": False}, fields={"_report_holders": broken}),
        Case(
            LostDevices,
            "_report",
            (VIEW, Thing(reason="Xid79", title="Xid 79", last_seen=1.0), "GPU-1"),
            fields={
                "_verdict_store": Thing(worst_action=lambda *_, **__: ActionClass.REPLACE),
                "_devices": Thing(inventory=None),
                "_report_to_hub": broken,
            },
        ),
        Case(FindingPipeline, "_earlier_fault", ("GPU-1",), fields={"_until_replaced": broken}),
        Case(FindingPipeline, "_ask_driver", (RECORDED,), fields={"_handle_when_usable": broken}),
        Case(
            FindingPipeline,
            "_handle",
            (RECORDED,),
            fields={
                "_faults": Thing(handle=later(broken), wait_until_replaced=nothing, is_over=first(True)),
                "_queue": Thing(finished=nothing),
            },
        ),
        Case(
            FindingPipeline,
            "_act",
            (None,),
            errors=2,
            fields={
                "_unsaved": Thing(get=later((1, [RECORDED]), OverError())),
                "_verdict_store": Thing(save=waits),
                "_lost": Thing(clear_recovered=broken),
                "_dispatch": broken,
                "_queue": Thing(finished=nothing),
            },
        ),
        Case(FindingPipeline, "_fold", ([FINDING, FINDING],), errors=2, fields={"_must_be_recorded": broken}),
        Case(
            Hub,
            "_report_failure",
            (Thing(container=VIEW), None),
            {"members": None, "doubt": None, "alone": None},
            fields={"_fault_reporter": Thing(report_exit=broken)},
        ),
        Case(
            Connection,
            "_try_all",
            (None,),
            fields={"_dialer": Thing(addresses=later(["here"])), "_run_stream": broken, "_welcomed_at": None},
        ),
        Case(Outbox, "_next_message", fields={"_pick": first(IndexError("a bug"), None)}),
        Case(FailedPrograms, "_handle", (Thing(container=VIEW),), fields={"_answer": broken}),
        Case(Members, "_ask", (VIEW,), {"at": 1.0}, fields={"_get_exit": broken}),
        Case(Members, "_check_pod", (Thing(ref=REF),), fields={"_get_exits": broken}),
        Case(Members, "_check_missed", (Thing(ref=REF, gang="g", is_over=False),), fields={"_of": broken}),
        Case(PodHolder, "_hold", (VIEW,), {"foreign": True}, fields={"_holding": Thing(hold=broken)}),
        Case(HoldSet, "release", errors=4, fields={**hold, "_freezer": Thing(thaw=broken)}),
        Case(HoldSet, "kill", errors=2, fields={**hold, "_freezer": Thing(kill=nothing)}),
        Case(
            RoundParticipant,
            "release",
            ("round", ()),
            errors=2,
            fields={"_members": {("round", uid): Thing(pod=Thing(uid=uid), end=broken) for uid in "ab"}},
        ),
        Case(
            RoundParticipant,
            "handle_order",
            (Thing(round="round", pod="uid"),),
            {"pod": REF},
            errors=2,
            fields={"_handle_order": broken, "_records": Thing(all={}), "_on_result": broken},
        ),
        Case(
            Recovery,
            "_replay_pod",
            ("uid",),
            {"locked": happened(), "restarts": Thing(turn=lambda _: contextlib.nullcontext())},
            fields={"_replay_until_done": broken},
        ),
        Case(
            Recovery,
            "_taken_over",
            (
                (
                    Thing(
                        intent=Thing(target=REF, reason="Xid31"),
                        execution=Thing(plan=None),
                        outcome=Outcome(Result.STEPPED_DOWN),
                    ),
                ),
            ),
            {"restarts": Thing(take_over=broken)},
            fields={"_replayed": happened()},
        ),
        Case(
            Replay,
            "report",
            (Thing(intent=Thing(target=REF), execution=Thing(plan=None)),),
        ),
        Case(
            RestartScheduler,
            "_contained",
            (Thing(target=REF), broken),
            errors=2,
            fields={"_reports": Thing(internal_error=broken)},
        ),
        Case(
            DeviceReattachTimer,
            "_containers",
            (Thing(processes=[Thing(pid=1), Thing(pid=2)]),),
            errors=2,
            fields={"_processes": Thing(facts=broken)},
        ),
        Case(
            KernelLogSource,
            "_process",
            (Thing(records=[XID], broken=0),),
            fields={
                "_measure_clock": nothing,
                "_offset": first(0.0),
                "_tree": Thing(forget=nothing),
                "_cursor": None,
                "_boot_id": "boot",
                "_read": broken,
                "_account": nothing,
                "_cursors": Thing(save=nothing),
            },
        ),
        Case(
            ContainerWatch,
            "_read",
            (Thing(next=later(Thing(container_id="id"), OverError())),),
            {"first_audit": 60.0},
            fields={"_handle": broken},
        ),
        Case(
            DegradationExpiry,
            "check",
            errors=2,
            fields={
                "_read_since": 0.0,
                "_clock": first(1.0),
                "_verdict_store": Thing(devices=first(["GPU-1", "GPU-2"])),
                "_check_device": broken,
            },
        ),
        Case(
            SuspicionTracker,
            "check",
            errors=2,
            fields={
                "_verdict_store": Thing(devices=first(["GPU-1", "GPU-2"])),
                "_at_work": {},
                "_check_device": broken,
            },
        ),
        Case(
            PodConditionReporter,
            "_attempt",
            (Thing(ref=REF, status=Thing(known=None, desired={})),),
            fields={"_write": broken},
        ),
        Case(LauncherWatch, "_may_be_restarted", (VIEW, None), fields={"_namespaces": None, "_own_pod_uid": None}),
        Case(
            LauncherWatch,
            "_follow",
            (VIEW,),
            fields={"_status": broken, "_pass_on": nothing, "_wake": happened()},
        ),
        Case(LauncherWatch, "_show", (REF,), fields={"_followed": {}, "_changed": broken}),
        Case(PodWatch, "_notify", (Thing(pod=VIEW),), errors=2, fields={"_listeners": [broken, broken]}),
        Case(
            RestartCounts,
            "run",
            fields={
                "_queue": Thing(get=later("uid", OverError())),
                "_spacing": 0.0,
                "_waiting": set(),
                "_pods": first({"uid": READS}, {}),
                "_write": broken,
            },
        ),
        Case(
            EventReporter,
            "run",
            fields={
                "_report": nothing,
                "_next": later(Thing(event_message=Thing(about=REF)), OverError()),
                "_attempt": broken,
                "_finish": nothing,
            },
        ),
        Case(
            DeviceTaintReporter,
            "run",
            fields={
                "_report": nothing,
                "_news": happened(),
                "_node": "node",
                "_served": None,
                "_discover": broken,
                "_backoff": Thing(wait=later(OverError())),
            },
        ),
        Case(Reader, "_read_command", (Thing(pid=1),), fields={"_pending": {1: None}, "_command": broken}),
    ]


NAMES = [
    *("exit", "exit-alone", "lost-device", "holder-of-a-lost-device", "earlier-fault", "driver", "end-of-a-fault"),
    *(
        "action",
        "fold",
        "failure",
        "hub",
        "message",
        "program",
        "how-it-ended",
        "pod",
        "missed-exit",
        "hold",
        "release",
    ),
    *("kill", "round", "order", "replay", "take-over", "outcome", "request", "process", "record", "event"),
    *("degradation", "suspicion", "condition", "refusal", "launcher", "state", "listener", "count", "series"),
    *("taint", "command"),
]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_error_about_one_object_ends_nothing_else(number: int) -> None:
    all_cases = cases()
    assert len(all_cases) == len(NAMES)
    assert await all_cases[number].run() == all_cases[number].errors
