"""The conclusions that workers' records allow, and those that they do not."""

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hack.devnode import pulse
from hack.devnode.pulse import Life

MS = 1_000_000


def life(member: str, began: int, last: int, *, still_since: int = 0, still_for: int = 0) -> Life:
    """A life in milliseconds."""
    return Life(member, began * MS, last * MS, beats=1, still_since=still_since * MS, still_for=still_for * MS)


def test_a_gap_between_the_last_old_and_the_first_new_sign_of_life_is_a_barrier() -> None:
    seen = [life("a", 0, 100), life("b", 1, 130), life("a", 150, 400), life("b", 145, 400)]
    found = pulse.barrier(seen, since=90 * MS)
    assert (found.old, found.new, found.apart, found.slipped) == (2, 2, 15 * MS, 0)


def test_only_the_last_old_life_of_each_member_is_old() -> None:
    seen = [life("a", 0, 10), life("a", 20, 100), life("b", 1, 99), life("a", 120, 400), life("b", 121, 400)]
    assert pulse.barrier(seen, since=90 * MS).old == 2


def test_life_that_ran_before_its_hold_has_slipped() -> None:
    held = life("a", 110, 400, still_since=115, still_for=100)
    found = pulse.barrier([life("a", 0, 100), life("b", 1, 200), held, life("b", 210, 400)], since=90 * MS)
    assert (found.apart, found.slipped) == (-90 * MS, 5 * MS)


def test_life_without_a_hold_overlaps_the_old_ones() -> None:
    loose = life("a", 110, 400, still_since=300, still_for=10)
    found = pulse.barrier([life("a", 0, 100), life("b", 1, 200), loose, life("b", 210, 400)], since=90 * MS)
    assert found.slipped == 90 * MS


def test_life_by_kubelet_that_a_round_replaced_is_old() -> None:
    kubelets = life("a", 110, 180)
    found = pulse.barrier(
        [life("a", 0, 100), life("b", 1, 150), kubelets, life("a", 200, 400), life("b", 170, 400)], since=90 * MS
    )
    assert (found.old, found.new, found.apart, found.slipped) == (2, 2, -10 * MS, 10 * MS)


def test_life_by_kubemend_that_was_replaced_is_new() -> None:
    ours = replace(life("a", 110, 180), ours=True)
    found = pulse.barrier(
        [life("a", 0, 100), life("b", 1, 150), ours, life("a", 200, 400), life("b", 190, 400)], since=90 * MS
    )
    assert (found.new, found.ours_slipped) == (3, 40 * MS)


def test_a_member_that_was_not_restarted_breaks_the_barrier() -> None:
    found = pulse.barrier([life("a", 0, 100), life("b", 1, 400), life("a", 150, 400)], since=90 * MS)
    assert (found.apart, found.slipped) == (-250 * MS, 250 * MS)


@pytest.mark.parametrize("seen", [[], [life("a", 0, 100)], [life("a", 150, 400)]])
def test_missing_old_or_new_lives_prove_nothing(seen: list[Life]) -> None:
    with pytest.raises(ValueError, match="no barrier"):
        pulse.barrier(seen, since=90 * MS)


def test_held_life_runs_from_the_end_of_its_hold() -> None:
    assert life("a", 100, 900, still_since=104, still_for=300).runs_since == 404 * MS
    assert life("a", 100, 900, still_since=600, still_for=300).runs_since == 100 * MS
    assert life("a", 100, 900, still_since=104, still_for=20).runs_since == 100 * MS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pulse.build(tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGUSR1, 0),
        (signal.SIGUSR2, 1),
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_worker_records_its_life_at_any_end(program: Path, tmp_path: Path, number: signal.Signals, status: int) -> None:
    before = time.monotonic_ns()
    with subprocess.Popen([program, str(tmp_path)], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"began ")
        until_beating(tmp_path)
        worker.send_signal(number)
        assert worker.wait(timeout=30) == status
    after = time.monotonic_ns()
    (found,) = pulse.lives(tmp_path)
    assert before < found.began < found.last < after


def test_worker_resumes_at_the_step_of_its_predecessor(program: Path, tmp_path: Path) -> None:
    steps = []
    for _ in range(2):
        began = time.monotonic_ns()
        with subprocess.Popen([program, str(tmp_path)], stdout=subprocess.DEVNULL) as worker:
            until_beating(tmp_path, beats=60, since=began)
            worker.kill()
        steps.append(pulse.step(tmp_path, pulse.lives(tmp_path)[0].member))
    assert steps[0] >= 2
    assert steps[1] >= steps[0] + 2


def until_beating(directory: Path, *, beats: int = 1, since: int = 0) -> None:
    """Wait until the newest worker has beaten that often."""
    deadline = time.monotonic() + 60
    while not any(each.began >= since and each.beats >= beats for each in pulse.lives(directory)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
