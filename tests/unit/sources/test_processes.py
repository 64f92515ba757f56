"""What a made-up /proc says about processes."""

from pathlib import Path

import pytest

from agent.sources.processes import ProcFs


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    return ProcFs(root=tmp_path)


def add_thread(proc: ProcFs, pid: int, tid: int, *, state: str, name: str = "python") -> None:
    task = proc.root / str(pid) / "task" / str(tid)
    task.mkdir(parents=True)
    (task / "stat").write_text(f"{tid} ({name}) {state} 1 1 1 0 -1 0 0\n")


def test_a_process_with_a_thread_in_uninterruptible_sleep_is_stuck_though_its_first_thread_is_a_zombie(
    proc: ProcFs,
) -> None:
    add_thread(proc, 7, 7, state="Z")
    add_thread(proc, 7, 8, state="D", name="odd) D (name")
    assert proc.is_stuck(7)


@pytest.mark.parametrize("state", ["R", "S", "T", "Z"])
def test_any_other_state_is_none_that_a_signal_cannot_reach(proc: ProcFs, state: str) -> None:
    add_thread(proc, 7, 7, state=state, name="a D process")
    assert not proc.is_stuck(7)


def test_a_process_that_is_gone_is_not_stuck(proc: ProcFs) -> None:
    assert not proc.is_stuck(7)
