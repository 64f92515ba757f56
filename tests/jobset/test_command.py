"""``python -m hack.jobset_scenarios``: a line for each scenario, and an exit status that tells."""

from pathlib import Path

import pytest

from hack.jobset_scenarios import __main__ as command

SCENARIO = """
about: a rule
jobset: {replicatedJobs: [{name: workers}]}
steps:
  - create:
    expect: {jobs: [workers-0]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "makes-jobs.yaml"
    path.write_text(SCENARIO)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr("sys.argv", ["jobset_scenarios", *args])
    return command.main()


@pytest.mark.parametrize("backend", ["memory", "standin"])
def test_scenario_that_goes_as_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path, backend: str
) -> None:
    assert run(monkeypatch, "--backend", backend, str(file)) == 0
    assert capsys.readouterr().out.startswith("makes-jobs: ok")


def test_scenario_that_goes_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(SCENARIO.replace("workers-0", "workers-1"))
    assert run(monkeypatch, str(file)) == 1
    told = "makes-jobs: steps[0] create\n  jobs are ['js-workers-0'], not ['js-workers-1']\n"
    assert capsys.readouterr().out == told


def test_file_that_is_no_scenario(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text("about: nothing\n")
    with pytest.raises(SystemExit, match=r"makes-jobs\.yaml: lacks 'jobset'; give it a value"):
        run(monkeypatch, str(file))
