"""The rerun rule, state by state."""

from typing import Any

import pytest

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import rerun, reset, steps, swap
from tests.unit.restart import pods
from tests.unit.restart.pods import CREATED, EXITED, RUNNING, new, old

Short = tuple[str, str, str | None]
HELD = pods.all_reserved()
COPIES = HELD[3:]
DONE_INIT = {ContainerId("ours-prepare"): reset.Exit(code=0, at=0)}
PREPARED = new("prepare", EXITED)
SHIPS = new("shipper", RUNNING)
LOGS = new("logger", RUNNING)


def steps_for(seen: list[ContainerSummary], *, exits: dict[ContainerId, reset.Exit] | None = None) -> list[Short]:
    known = reset.Known(exits=DONE_INIT if exits is None else exits)
    found = rerun.next_steps(pods.intent(), seen, known=known)
    return [(step.kind.value, step.reason.value, step.container or step.name) for step in found]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            [*HELD[1:], old("prepare", EXITED), old("shipper"), old("trainer")],
            [("reserve", "NameFree", "shipper")],
            id="names-of-later-turns-are-reserved-first",
        ),
        pytest.param(
            [*HELD[:3], old("prepare", EXITED), old("shipper"), old("trainer")],
            [("remove", "OldLeft", "old-prepare")],
            id="copies-names-do-not-delay-the-kill",
        ),
        pytest.param(
            [*HELD[:-1], old("shipper"), old("trainer")],
            [
                ("remove", "OldLeft", "old-shipper"),
                ("remove", "OldLeft", "old-trainer"),
                ("reserve", "NameFree", "logger"),
            ],
            id="copies-names-are-reserved-during-the-kill",
        ),
        pytest.param(
            [*HELD[:3], *HELD[4:]], [("reserve", "NameFree", "prepare")], id="nothing-is-created-before-its-copys-name"
        ),
        pytest.param(
            [HELD[0], *HELD[5:], PREPARED],
            [("reserve", "NameFree", "shipper")],
            id="nor-given-back-before-its-copys-name",
        ),
        pytest.param(
            [*HELD, old("prepare", EXITED), old("shipper"), old("trainer")],
            [("remove", "OldLeft", "old-prepare")],
            id="exited-ones-go-first",
        ),
        pytest.param(
            [*HELD, old("shipper"), old("trainer")],
            [("remove", "OldLeft", "old-shipper"), ("remove", "OldLeft", "old-trainer")],
            id="then-all-others-at-once",
        ),
        pytest.param(
            [*HELD, old("shipper"), new("trainer", RUNNING, ours=False)],
            [("remove", "OldLeft", "old-shipper"), ("remove", "OutOfTurn", "kubelets-trainer")],
            id="what-kubelet-started-too-early-goes",
        ),
        pytest.param(HELD, [("create", "NoSuccessor", "prepare")], id="init-comes-first"),
        pytest.param([*HELD, new("prepare", CREATED)], [("start", "SuccessorReady", "ours-prepare")], id="is-started"),
        pytest.param([*HELD, new("prepare", RUNNING)], [("wait", "InitRuns", "ours-prepare")], id="is-awaited"),
        pytest.param(
            [new("prepare", CREATED, ours=False)], [("wait", "KubeletStartsItsOwn", "kubelets-prepare")], id="adopted"
        ),
        pytest.param(
            [new("prepare", RUNNING), new("prepare", CREATED, ours=False, attempt=2)],
            [("remove", "KubeletWon", "ours-prepare")],
            id="of-two-ours-goes",
        ),
        pytest.param(
            [new("prepare", RUNNING), new("prepare", EXITED, ours=False, attempt=2)],
            [("remove", "KubeletWon", "ours-prepare")],
            id="an-init-container-does-not-continue-after-kubelets-end",
        ),
        pytest.param(
            [*HELD, new("prepare", ContainerState.UNKNOWN)],
            [("wait", "StateUnknown", "ours-prepare")],
            id="one-in-an-unknown-state-is-not-started",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", RUNNING), new("trainer", RUNNING, ours=False, attempt=2), LOGS],
            [("remove", "KubeletWon", "ours-trainer")],
            id="of-two-that-run-ours-goes",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", CREATED), new("trainer", EXITED, ours=False, attempt=2), LOGS],
            [("remove", "KubeletWon", "ours-trainer")],
            id="ours-does-not-begin-after-kubelets-end",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", RUNNING), new("trainer", EXITED, ours=False, attempt=2), LOGS],
            [("done", "Rerun", None)],
            id="but-ours-that-runs-stays",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", EXITED), new("trainer", RUNNING, ours=False, attempt=2), LOGS],
            [("done", "Rerun", None)],
            id="and-ours-that-has-ended",
        ),
        pytest.param(
            [*HELD, PREPARED],
            [("remove", "GivenBack", "r1-holds-shipper-1")],
            id="then-the-sidecars-name-is-given-back",
        ),
        pytest.param([*COPIES, PREPARED], [("create", "NoSuccessor", "shipper")], id="then-the-sidecar"),
        pytest.param(
            [*COPIES, PREPARED, SHIPS],
            [("create", "NoSuccessor", "trainer"), ("create", "NoSuccessor", "logger")],
            id="then-all-mains-side-by-side",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", CREATED), new("logger", CREATED, ours=False)],
            [("start", "SuccessorReady", "ours-trainer")],
            id="no-main-waits-for-kubelets-one",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", RUNNING), new("logger", CREATED, ours=False)],
            [("wait", "KubeletStartsItsOwn", "kubelets-logger")],
            id="kubelets-main-is-waited-for",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", CREATED, ours=False), new("logger", CREATED, ours=False)],
            [("wait", "KubeletStartsItsOwn", "kubelets-trainer")],
            id="of-several-one-is-waited-for",
        ),
        pytest.param(
            [*COPIES, PREPARED, SHIPS, new("trainer", RUNNING), new("logger", EXITED)],
            [("done", "Rerun", None)],
            id="done-with-the-copies-names-held",
        ),
        pytest.param(
            [PREPARED, new("shipper", EXITED)], [("done", "SidecarExited", "ours-shipper")], id="a-dead-sidecar"
        ),
        pytest.param(
            [*COPIES, PREPARED, SHIPS, new("shipper", EXITED, ours=False, attempt=2)],
            [("create", "NoSuccessor", "trainer"), ("create", "NoSuccessor", "logger")],
            id="a-sidecar-that-runs-though-kubelets-is-dead",
        ),
        pytest.param(
            [*COPIES, pods.view("debugger", "x"), PREPARED], [("create", "NoSuccessor", "shipper")], id="ephemeral"
        ),
    ],
)
def test_next_steps(seen: list[ContainerSummary], expected: list[Short]) -> None:
    assert steps_for(seen) == expected


def test_earlier_reservation_is_removed_first() -> None:
    left = pods.reserved("trainer", attempt=1, restart_id="r0")
    assert steps_for([left, old("trainer")]) == [("remove", "GivenBack", "r0-holds-trainer-1")]


def test_reservation_is_not_a_waiting_successor() -> None:
    """If the journal is lost, kubelet's garbage collector removes it: it is never started."""
    assert swap.orphans([*ALL_OLD, *HELD], owned=frozenset(), now=0.0) == ()


def test_name_held_by_another_container_counts_as_reserved() -> None:
    known = reset.Known(taken=frozenset({("logger", 2)}))
    found = rerun.next_steps(pods.intent(), [*HELD[:-1], old("trainer")], known=known)
    assert [step.reason for step in found] == [steps.StepReason.OLD_LEFT]  # and nothing is reserved


def test_copy_name_in_which_paths_are_kept_is_reserved_before_removals() -> None:
    seen = [*HELD[:3], old("prepare", EXITED), old("shipper"), old("trainer")]
    (step,) = rerun.next_steps(pods.intent(), seen, known=reset.Known(keeps=frozenset({"trainer"})))
    assert (step.kind, step.name, step.attempt) == (steps.StepKind.RESERVE, "trainer", 2)


def test_only_copy_names_are_reserved_without_init_containers() -> None:
    intent = pods.intent(plan=(pods.planned("trainer", pods.MAIN), pods.planned("logger", pods.MAIN)))
    found = rerun.next_steps(intent, [old("trainer"), old("logger")])
    assert [(step.kind, step.name, step.attempt) for step in found] == [
        (steps.StepKind.REMOVE, "trainer", None),
        (steps.StepKind.REMOVE, "logger", None),
        (steps.StepKind.RESERVE, "trainer", 2),
        (steps.StepKind.RESERVE, "logger", 2),
    ]


RUN = [PREPARED, SHIPS, new("trainer", RUNNING), new("logger", RUNNING)]
LASTING = frozenset(view.id for view in RUN[1:])


def afterwards(seen: list[ContainerSummary], **known: Any) -> list[Short]:
    facts = reset.Known(exits=DONE_INIT, afterwards=True, **known)
    found = rerun.next_steps(pods.intent(), [*COPIES, *seen], known=facts)
    return [(step.kind.value, step.reason.value, step.container or step.name) for step in found]


def test_names_are_released_once_kubelet_shows_all_running() -> None:
    assert afterwards(RUN) == [("wait", "NotShownByKubelet", "ours-shipper")]
    assert afterwards(RUN, running=frozenset({SHIPS.id})) == [("remove", "GivenBack", "r1-holds-shipper-2")]
    every = [("remove", "GivenBack", view.id) for view in COPIES]
    assert afterwards(RUN, running=LASTING) == every
    assert afterwards(RUN, overdue=True) == every


def test_container_that_kubelet_does_not_show_yet_is_awaited_by_its_name() -> None:
    shown = frozenset({SHIPS.id})
    known = reset.Known(exits=DONE_INIT, afterwards=True, running=shown)
    (waits,) = rerun.next_steps(pods.intent(), [*COPIES[2:], *RUN], known=known)
    assert (waits.reason, waits.container) == (steps.StepReason.NOT_SHOWN, "ours-trainer")


def test_rerun_ends_once_kubelet_shows_all_running_and_no_name_is_held() -> None:
    known = reset.Known(exits=DONE_INIT, afterwards=True, running=LASTING)
    assert [step.reason for step in rerun.next_steps(pods.intent(), RUN, known=known)] == [steps.StepReason.RERUN]


def test_nothing_is_awaited_without_reservations() -> None:
    known = reset.Known(exits=DONE_INIT, afterwards=True)
    assert [step.reason for step in rerun.next_steps(pods.intent(), RUN, known=known)] == [steps.StepReason.RERUN]


def test_ended_container_is_left_to_kubelet_at_once() -> None:
    ended = [*RUN[:2], new("trainer", EXITED), RUN[3]]
    assert afterwards(ended) == [("remove", "GivenBack", "r1-holds-trainer-2")]


def test_failed_init_container_is_left_to_kubelet_with_names_released() -> None:
    failed = {ContainerId("ours-prepare"): reset.Exit(code=1, at=0)}
    assert steps_for([*HELD, PREPARED], exits=failed) == [("remove", "GivenBack", view.id) for view in HELD]
    assert steps_for([PREPARED], exits=failed) == [("done", "InitFailed", "ours-prepare")]


def test_unknown_exit_code_is_neither_success_nor_failure() -> None:
    assert steps_for([PREPARED], exits={}) == [("wait", "StateUnknown", "ours-prepare")]
    assert steps_for([PREPARED, new("trainer", RUNNING, ours=False)], exits={}) == [
        ("wait", "StateUnknown", "ours-prepare")
    ]


def test_sidecar_startup_probe_is_awaited() -> None:
    plan = (pods.planned("shipper", pods.SIDECAR, has_startup_probe=True), pods.planned("trainer", pods.MAIN))
    intent = pods.intent(plan=plan)
    (waits,) = rerun.next_steps(intent, [SHIPS])
    (goes_on,) = rerun.next_steps(intent, [SHIPS], known=reset.Known(started=frozenset({SHIPS.id})))
    assert (waits.reason, goes_on.name) == (steps.StepReason.NOT_STARTED, "trainer")


def test_grace_period_stops_everything_before_removal() -> None:
    found = rerun.next_steps(pods.intent(grace_seconds=5.0), [*HELD, old("shipper"), old("trainer")])
    assert {(step.kind, step.container) for step in found} == {
        (steps.StepKind.STOP, "old-shipper"),
        (steps.StepKind.STOP, "old-trainer"),
    }


def test_missing_configs_leave_starts_to_kubelet_and_nothing_waiting() -> None:
    intent = pods.intent()
    (removal,) = rerun.next_steps(intent, [PREPARED, new("shipper", CREATED)], can_clone=False)
    (end,) = rerun.next_steps(intent, [PREPARED], can_clone=False)
    assert (removal.kind, removal.container) == (steps.StepKind.REMOVE, "ours-shipper")
    assert (end.kind, end.reason) == (steps.StepKind.DONE, steps.StepReason.LEFT_TO_KUBELET)


def test_only_own_waiting_containers_are_removed_when_kubelet_continues() -> None:
    kubelets = [new("shipper", CREATED, ours=False), new("trainer", RUNNING)]
    unknown = new("logger", ContainerState.UNKNOWN)
    (removal,) = rerun.next_steps(pods.intent(), [PREPARED, *kubelets, unknown], can_clone=False)
    assert (removal.kind, removal.container) == (steps.StepKind.REMOVE, "ours-logger")
    (end,) = rerun.next_steps(pods.intent(), [PREPARED, *kubelets, LOGS], can_clone=False)
    assert (end.kind, end.reason) == (steps.StepKind.DONE, steps.StepReason.RERUN)


ALL_OLD = [old(item.name) for item in pods.PLAN]


def test_undo_leaves_untouched_pod_and_clears_half_cleared_one() -> None:
    intent, undo = pods.intent(), steps.Resolution.UNDO
    assert {step.reason for step in rerun.next_steps(intent, [*HELD, *ALL_OLD], resolution=undo)} == {
        steps.StepReason.GIVEN_BACK
    }
    assert rerun.next_steps(intent, ALL_OLD, resolution=undo)[0].reason is steps.StepReason.UNDONE
    known = reset.Known(noticed=intent.old_ids)
    cleared = rerun.next_steps(intent, ALL_OLD[:-1], known=known, resolution=undo)
    assert {step.reason for step in cleared} == {steps.StepReason.OLD_LEFT}
