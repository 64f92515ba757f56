"""Correct start times that the runtime records by a settable clock, with the kernel's clock."""

import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.restarts import runtime_state
from tests.fakes import outside
from tests.unit.restart import builders

BOOTED_AT = 1_000_000.0
STARTED = 500.0  # seconds since boot
PID = 4242
NOW = 900.0  # seconds since boot


def target_started_at(*, noted: float) -> runtime_state.RuntimeState:
    """Return a target whose start the runtime recorded at that Unix time."""
    view = builders.view("old")
    info = ContainerStatus(
        id=view.id,
        ref=view.ref,
        attempt=view.attempt,
        state=view.state,
        created_at=view.created_at,
        started_at=int(noted * 1_000_000_000),
        finished_at=0,
        exit_code=0,
        reason="",
        message="",
        log_path="",
        annotations={},
        pid=PID,
    )
    return runtime_state.RuntimeState(info=info, siblings=(view,), view=view, sandbox_ready=True)


def started_at(target: runtime_state.RuntimeState, *, wall_now: float, known: bool = True) -> float:
    processes = outside.Processes()
    if known:
        processes.add(PID, container=target.view.id, started=STARTED)
    step = runtime_state.clock_step(target.info, processes=processes, now=wall_now, since_boot=NOW)
    found = target.facts(now=0.0, stepped=step).started_at
    assert found is not None
    return found


@pytest.mark.parametrize("step", [-3600.0, -5.0, 0.0, 5.0, 86_400.0])
def test_clock_step_corrects_start_time(step: float) -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=BOOTED_AT + NOW + step) == pytest.approx(BOOTED_AT + STARTED + step)


def test_clock_step_ignores_slow_process_start() -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED + 1.5)
    assert started_at(target, wall_now=BOOTED_AT + NOW) == pytest.approx(BOOTED_AT + STARTED + 1.5)


def test_clock_step_without_process_keeps_start_time() -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=0.0, known=False) == pytest.approx(BOOTED_AT + STARTED)


@pytest.mark.parametrize(
    ("kind", "why"), [("overlay", None), (None, None), ("ext4", "its root is ext4, not an overlay")]
)
def test_not_holdable_reports_root_that_is_no_overlay(kind: str | None, why: str | None) -> None:
    target = target_started_at(noted=BOOTED_AT)
    processes = outside.Processes(roots=kind)
    assert runtime_state.not_holdable(target.info, processes=processes) == why
