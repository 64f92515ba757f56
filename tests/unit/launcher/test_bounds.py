"""A program that imports or writes without end costs the launcher a bounded amount, and never a wrong list."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from launcher.kubemend_run import Known, Launcher, Recorder, Spare, Store


def _find_spec(finder: Recorder, name: str) -> None:
    finder.find_spec(name)


def _find_and_load_unlocked(finder: Recorder, name: str) -> None:
    """Call as the interpreter does when it imports a module."""
    _find_spec(finder, name)


def test_number_of_recorded_modules_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubemend_run, "_MOST_RECORDED", 3)
    (log := tmp_path / "log").touch()
    recorder = Recorder(str(log))
    for number in range(5):
        _find_and_load_unlocked(recorder, f"generated_{number}")
    assert [line for line in log.read_text().splitlines() if line.startswith("m ")] == [
        f"m generated_{number}" for number in range(3)
    ]


def test_list_that_does_not_fit_the_volume_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last name could be cut off, and be another module's."""
    store = Store(["train.py"], str(tmp_path))
    store.keep(Known(names=("before",)))
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, content: write(file, content[: len(content) // 2]))
        store.keep(Known(names=("torch", "torchvision")))
    assert store.known.names == ("torch", "torchvision"), "this launcher has it in memory"
    assert Store(["train.py"], str(tmp_path)).known.names == ("before",)
    assert len([*(tmp_path / "modules").iterdir()]) == 1


def test_list_of_a_program_that_two_containers_run_is_one_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both launchers are process 1 of their containers."""
    first, second = (Store(["train.py"], str(tmp_path)) for _ in range(2))
    write = os.write

    def write_later(file: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        second.keep(Known(names=("torchvision",)))
        return write(file, content)

    monkeypatch.setattr(os, "write", write_later)
    first.keep(Known(names=("jax",)))
    assert Store(["train.py"], str(tmp_path)).known.names == ("jax",)
    assert len([*(tmp_path / "modules").iterdir()]) == 1


def test_list_that_is_longer_than_is_read_ends_with_a_whole_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(["train.py"], str(tmp_path)).keep(Known(names=("torch", "torchvision")))
    monkeypatch.setattr(kubemend_run, "_LONGEST_STORE", len("torch\ntorchv"))
    assert Store(["train.py"], str(tmp_path)).known.names == ("torch",)


def test_list_does_not_grow_with_each_run_of_a_program_that_generates_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubemend_run, "_MOST_NAMES", 3)
    launcher = object.__new__(Launcher)
    store = Store(["train.py"], str(tmp_path))
    for run in range(3):
        names = [f"generated_{run}_{number}" for number in range(3)]
        log = kubemend_run.memory_file("log", "".join(f"m {each}\nd {each}\n" for each in names).encode())
        launcher.__dict__.update(_program=kubemend_run.Program(()), _store=store, _log=log)
        launcher._learn(store.known.names)
        os.close(log)
        assert list(store.known.names) == names


def test_program_whose_imports_fail_without_end_does_not_keep_the_launcher_from_its_signals() -> None:
    """Compared with each other, these would take minutes."""
    failed = [f"m missing_{number}" for number in range(10_000)]
    records = [*failed, *(f"{kind} found_{number}" for number in range(10_000) for kind in "md")]
    began = time.process_time()
    assert len(kubemend_run.names_of(records)) == 10_000
    assert len(kubemend_run.plan(records, Known(), "train")) == 10_000
    assert time.process_time() - began < 10.0


def test_what_an_import_writes_to_the_spares_pipe_is_not_gathered_without_end() -> None:
    status, tell = os.pipe()
    order, release = os.pipe()
    log, names = (kubemend_run.memory_file("test") for _ in range(2))
    spare = Spare(0, status, release, log, names, [])
    try:
        for _ in range(4):
            os.write(tell, b"x" * 50_000)
            spare.read()
        assert len(spare._text) <= 65536
        os.write(tell, b"\nimport torch\n")
        spare.read()
        assert spare.module == "torch"
    finally:
        spare.close()
        for file in (tell, order, log):
            os.close(file)


def test_interpreter_that_starts_slowly_gets_its_spare_until_a_minute_is_over() -> None:
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(_began=time.monotonic(), _tries=0, _options=SimpleNamespace(spare_after=0.1))
    for _ in range(20):
        launcher._await_interpreter()
    assert launcher._tries == 0
    launcher._began -= 60.0
    launcher._await_interpreter()
    assert (launcher._tries, launcher._no_spare.reason) == (kubemend_run._TRIES, kubemend_run.UNSUPPORTED)
