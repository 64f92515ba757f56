"""The violations after a crash, and similar states that are none."""

from dataclasses import replace
from typing import Any

import pytest

from bench.crash import judging
from bench.crash.judging import Life, Now, Overlap, Wrong
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)
from kubemend.agent.restart.intents import Strategy

SUBJECT = Subject("pod")
PAIR = Subject("pod", mains=("trainer", "worker"))
AT = 1000.0
FAULT = Injected(SUBJECT, "trainer", old=ContainerId("trainer-old"), pid=17, at=AT)


def running(container: str, *, created: float = AT + 1, pod: str = "uid", box: str = "box") -> ContainerSummary:
    name = container.partition("-")[0]
    ref = ContainerRef(PodRef("default", SUBJECT.name, PodUid(pod)), name)
    state = ContainerState.RUNNING
    return ContainerSummary(ContainerId(container), ref, SandboxId(box), 0, state, created_at=int(created * 1e9))


RUN = {"trainer": [running("trainer-new")], "shipper": [running("shipper-old", created=AT - 9)]}
SHOWN = {"trainer": ContainerId("trainer-new"), "shipper": ContainerId("shipper-old")}


def now(**changes: Any) -> Now:
    """A healthy pod after a restart of its trainer."""
    well = Now(
        subject=SUBJECT,
        phases=("Running",),
        running=RUN,
        shown=SHOWN,
        restart_counts={"prepare": 0, "trainer": 1, "shipper": 0},
    )
    return replace(well, **changes)


BEFORE = now(restart_counts={"prepare": 0, "trainer": 0, "shipper": 0})


def wrongs(after: Now, *, before: Now = BEFORE, kills: int = 1) -> list[Wrong]:
    found = judging.wrongs(after, before=before, since=AT - 1, faults=[FAULT], kills=kills)
    return [violation.wrong for violation in found]


def test_healthy_pod_has_no_violation() -> None:
    assert judging.unsettled(now(), [FAULT]) == ()
    assert wrongs(now()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"phases": ("Running", "Failed")}, Wrong.NOT_RUNNING, id="failed"),
        pytest.param({"phases": ()}, Wrong.NOT_RUNNING, id="never-ran"),
        pytest.param({"running": {"trainer": [running("trainer-new")]}}, Wrong.NOT_RUNNING, id="sidecar-missing"),
        pytest.param(
            {"running": RUN | {"trainer": [running("trainer-new"), running("trainer-copy")]}},
            Wrong.DUPLICATE,
            id="two-trainers",
        ),
        pytest.param({"shown": SHOWN | {"trainer": ContainerId("trainer-old")}}, Wrong.KUBELET_DISAGREES, id="kubelet"),
        pytest.param({"frozen": [ContainerId("shipper-old")]}, Wrong.FROZEN, id="frozen"),
    ],
)
def test_unsettled_lists_missing_and_extra_containers(changes: dict[str, Any], expected: Wrong) -> None:
    assert [violation.wrong for violation in judging.unsettled(now(**changes), [FAULT])] == [expected]


def test_a_container_that_outlived_its_fault_was_not_restarted() -> None:
    old = now(
        running=RUN | {"trainer": [running("trainer-old", created=AT - 9)]},
        shown=SHOWN | {"trainer": ContainerId("trainer-old")},
    )
    assert [violation.wrong for violation in judging.unsettled(old, [FAULT])] == [Wrong.LOST]
    refusal = "trainer not restarted for Xid 31 on GPU-0 pid 17: a new process would fail on the device"
    assert judging.unsettled(replace(old, refusals=[refusal]), [FAULT]) == ()
    another = "trainer not restarted for Xid 31 on GPU-0 pid 170: a new process would fail on the device"
    assert judging.unsettled(replace(old, refusals=[another]), [FAULT]) != ()


def test_a_pair_of_which_one_was_restarted_has_lost_the_other() -> None:
    fault = replace(FAULT, subject=PAIR)
    half = now(
        subject=PAIR,
        running=RUN | {"worker": [running("worker-old", created=AT - 9)]},
        shown=SHOWN | {"worker": ContainerId("worker-old")},
    )
    assert [violation.detail for violation in judging.unsettled(half, [fault])] == [
        "worker outlived the fault of trainer (pid 17)"
    ]
    whole = replace(
        half,
        running=RUN | {"worker": [running("worker-new")]},
        shown=SHOWN | {"worker": ContainerId("worker-new")},
    )
    assert judging.unsettled(whole, [fault]) == ()


def test_a_fault_that_was_refused_is_no_success() -> None:
    refusal = "trainer not restarted for Xid 31 on GPU-0 pid 17: a new process would fail on the device"
    old = now(restart_counts=BEFORE.restart_counts, refusals=[refusal])
    assert wrongs(old) == [Wrong.REFUSED]


@pytest.mark.parametrize(
    "elsewhere", [running("trainer-new", pod="another"), running("trainer-new", box="another")], ids=["pod", "sandbox"]
)
def test_a_pod_must_stay_in_its_place(elsewhere: ContainerSummary) -> None:
    assert wrongs(now(running=RUN | {"trainer": [elsewhere]})) == [Wrong.NOT_IN_PLACE]


def test_never_started_container_of_the_agent_is_a_violation() -> None:
    made = replace(running("trainer-new"), restart_id="r1", state=ContainerState.CREATED)
    assert [violation.wrong for violation in judging.left_behind([made])] == [Wrong.LEFT_BEHIND]
    others = [replace(made, restart_id=None), replace(made, state=ContainerState.RUNNING)]
    assert judging.left_behind(others) == ()


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Unknown"])
def test_pod_that_ever_ended_is_a_violation(phase: str) -> None:
    assert wrongs(now(phases=("Running", phase, "Running"))) == [Wrong.POD_FAILED]


def test_a_pod_whose_init_containers_run_again_is_pending_for_a_while() -> None:
    assert wrongs(now(phases=("Running", "Pending", "Running"))) == []


def test_earlier_violation_is_not_reported_again() -> None:
    ended = ("Running", "Failed", "Running")
    before = replace(BEFORE, phases=ended, overlaps=("trainer",))
    assert wrongs(now(phases=ended, overlaps=("trainer",)), before=before) == []


def life(created: float, began: float | None, ended: float | None, **more: Any) -> Life:
    """A trainer's life, in seconds after the fault."""
    return Life(
        "trainer",
        created=AT + created,
        began=None if began is None else AT + began,
        ended=None if ended is None else AT + ended,
        **more,
    )


OLD_ENDED, NEW = life(-50, -49, 1), life(1, 2, None)


@pytest.mark.parametrize(
    ("lives", "what", "expected"),
    [
        pytest.param([life(-50, -49, 3), NEW], Overlap.OLD, [Wrong.DUPLICATE], id="old-beside-new"),
        pytest.param([OLD_ENDED, life(1, 2, 4), life(2, 3, None)], Overlap.COPY, [], id="two-new-ones"),
        pytest.param([life(-50, -49, 3, stood_still=True), NEW], Overlap.HELD, [], id="old-stood-still"),
        pytest.param(
            [life(-50, -49, 3, stood_still=True), life(-40, -39, 3), NEW],
            Overlap.OLD,
            [Wrong.DUPLICATE],
            id="not-all-of-the-old-stood-still",
        ),
        pytest.param([OLD_ENDED, NEW], Overlap.OLD, [Wrong.DUPLICATE], id="no-event-explains-it"),
    ],
)
def test_overlap_at_a_containers_start_is_classified(lives: list[Life], what: Overlap, expected: list[Wrong]) -> None:
    after = now(overlaps=("trainer",), lives=lives)
    assert judging.overlaps(after, before=BEFORE, since=AT - 1) == [("trainer", what)]
    assert wrongs(after) == expected


@pytest.mark.parametrize(
    ("counts", "kills", "expected"),
    [
        ({"trainer": 1}, 1, []),
        ({"trainer": 2}, 1, []),
        ({"trainer": 3}, 1, [Wrong.RESTART_COUNT]),
        ({"trainer": 3}, 2, []),
        ({"trainer": 0}, 1, [Wrong.RESTART_COUNT]),
        ({"trainer": 1, "shipper": -1}, 1, [Wrong.RESTART_COUNT]),
        ({"trainer": 1, "shipper": 1}, 1, [Wrong.RESTART_COUNT]),
        ({"trainer": 1, "prepare": 1}, 1, [Wrong.RESTART_COUNT]),
    ],
)
def test_restart_counts_grow_and_not_without_bounds(counts: dict[str, int], kills: int, expected: list[Wrong]) -> None:
    assert wrongs(now(restart_counts={"prepare": 0, "shipper": 0} | counts), kills=kills) == expected


def test_restart_counts_grow_with_the_copies_that_kubelet_made_of_hit_containers() -> None:
    counts = {"prepare": 0, "trainer": 3, "shipper": 0}
    mine, copy = Life("trainer", created=AT, ours=True), Life("trainer", created=AT + 1)
    assert wrongs(now(restart_counts=counts, lives=[mine, mine, copy])) == []
    for lives in ([mine, mine, mine], [replace(copy, created=AT - 9)], [replace(copy, name="shipper")]):
        assert wrongs(now(restart_counts=counts, lives=lives)) == [Wrong.RESTART_COUNT]
    assert wrongs(now(restart_counts=counts | {"shipper": 1}, lives=[copy, replace(copy, name="shipper")])) == [
        Wrong.RESTART_COUNT
    ]


def test_rerun_restarts_everything_and_spares_other_pods() -> None:
    rerun = Subject("pod", strategy=Strategy.RERUN)
    once = now(restart_counts={"prepare": 1, "trainer": 1, "shipper": 1})
    for after, faults, expected in [
        (once, [replace(FAULT, subject=rerun)], []),
        (now(), [replace(FAULT, subject=rerun)], [Wrong.RESTART_COUNT, Wrong.RESTART_COUNT]),
        (now(), [], [Wrong.RESTART_COUNT]),
        (BEFORE, [], []),
    ]:
        found = judging.wrongs(after, before=BEFORE, since=AT - 1, faults=faults, kills=1)
        assert [violation.wrong for violation in found] == expected


def test_containers_run_next_to_each_other_only_while_both_run() -> None:
    first, second, never = life(0, 1, 5), life(2, 3, None), life(2, None, None)
    assert first.beside(second)
    assert second.beside(first)
    assert not first.beside(first)
    assert not first.beside(never)
    assert not first.beside(replace(second, began=AT + 5))
    assert not first.beside(replace(second, name="shipper"))
