"""What the runtime notes by a clock that can be set is made good by the kernel's own."""

import pytest

from agent.cri.answers import ContainerInfo
from agent.engine import targets
from tests.fakes import outside
from tests.unit.restart import builders

BOOTED_AT = 1_000_000.0
STARTED = 500.0  # seconds since boot
PID = 4242
NOW = 900.0  # seconds since boot


def target_started_at(*, noted: float) -> targets.Target:
    """Return a target whose start the runtime has noted at that Unix time."""
    view = builders.view("old")
    info = ContainerInfo(
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
    return targets.Target(info=info, siblings=(view,), view=view, sandbox_ready=True)


def started_at(target: targets.Target, *, wall_now: float, known: bool = True) -> float:
    processes = outside.Processes()
    if known:
        processes.add(PID, container=target.view.id, started=STARTED)
    step = targets.clock_step(target.info, processes=processes, now=wall_now, since_boot=NOW)  # type: ignore[arg-type]
    found = target.facts(stepped=step).started_at
    assert found is not None
    return found


@pytest.mark.parametrize("step", [-3600.0, -5.0, 0.0, 5.0, 86_400.0])
def test_a_start_is_told_by_the_clock_as_it_is_now(step: float) -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=BOOTED_AT + NOW + step) == pytest.approx(BOOTED_AT + STARTED + step)


def test_a_process_that_took_its_time_to_start_is_no_step_of_the_clock() -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED + 1.5)
    assert started_at(target, wall_now=BOOTED_AT + NOW) == pytest.approx(BOOTED_AT + STARTED + 1.5)


def test_without_the_process_the_runtimes_word_stands() -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=0.0, known=False) == pytest.approx(BOOTED_AT + STARTED)


@pytest.mark.parametrize(
    ("kind", "why"), [("overlay", None), (None, None), ("ext4", "its root is ext4, not an overlay")]
)
def test_a_root_that_is_no_overlay_keeps_a_successor_from_being_held(kind: str | None, why: str | None) -> None:
    target = target_started_at(noted=BOOTED_AT)
    processes = outside.Processes(roots=kind)
    assert targets.not_holdable(target.info, processes=processes) == why  # type: ignore[arg-type]
