"""Work on one of many objects that ends with an internal error ends nothing else, wherever the agent does such work.

Each case breaks what a method calls for one object. The method must return, and the error must be counted.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.faults.exits import Exits
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.pipeline import FindingPipeline
from kubemend.agent.hub.client import Hub
from kubemend.agent.hub.connection import Connection
from kubemend.agent.hub.failed_programs import FailedPrograms
from kubemend.agent.hub.members import Members
from kubemend.agent.hub.outbox import Outbox
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.pod_hold import PodHolder
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.kernel_log import KernelLogSource
from kubemend.common import contained

REF = Thing(uid="uid", pod=Thing(uid="uid"))
VIEW = Thing(ref=REF, id="id")
FINDING = Thing(title="Xid 31", device="GPU-1", observed_at=1.0)
RECORDED = Thing(finding=FINDING, device="GPU-1")
XID = b"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python\n"


class OverError(Exception):
    """The end of a loop that would go on for ever."""


def broken(*_: Any, **__: Any) -> Any:
    raise IndexError("a bug")


def nothing(*_: Any, **__: Any) -> None: ...


async def waits(*_: Any, **__: Any) -> None: ...


def first(*values: Any) -> Callable[..., Any]:
    """Return a function that returns these values, one for each call, and raises those that are errors."""
    left = [*values]

    def answer(*_: Any, **__: Any) -> Any:
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    return answer


def later(*values: Any) -> Callable[..., Any]:
    """Return the same as a coroutine."""
    answer = first(*values)

    async def wait(*_: Any, **__: Any) -> Any:
        return answer()

    return wait


def happened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Case:
    """``fields`` are those of an object of this class that the method uses; ``errors`` are contained."""

    of: type
    method: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    errors: int = 1
    fields: dict[str, Any] = field(default_factory=dict)


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
            "_process_batch",
            ([FINDING], None),
            errors=2,
            fields={
                "_must_be_recorded": first(True),
                "_record": first(RECORDED),
                "_verdict_store": Thing(save=waits),
                "_lost": Thing(clear_recovered=broken),
                "_dispatch": broken,
            },
        ),
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
            (Thing(intent=Thing(target=REF), outcome=None),),
            {"restarts": Thing(take_over=broken)},
            fields={"_replayed": happened()},
        ),
        Case(
            Recovery,
            "_report_outcome",
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
    ]


NAMES = [
    *("exit", "exit-alone", "lost-device", "holder-of-a-lost-device", "earlier-fault", "driver", "end-of-a-fault"),
    *("batch", "failure", "hub", "message", "program", "how-it-ended", "pod", "missed-exit", "hold", "release", "kill"),
    *("round", "order", "replay", "take-over", "outcome", "request", "process", "record", "event"),
]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
async def test_error_about_one_object_ends_nothing_else(number: int) -> None:
    all_cases = cases()
    assert len(all_cases) == len(NAMES)
    case = all_cases[number]
    one: Any = object.__new__(case.of)
    for name, value in case.fields.items():
        setattr(one, name, value)
    before = contained.count()
    with contextlib.suppress(OverError):
        result = getattr(one, case.method)(*case.arguments, **case.named)
        if inspect.isawaitable(result):
            await result
    assert contained.count() == before + case.errors
