"""``python -m tests.jobset``: a line for each scenario, and an exit status."""

from pathlib import Path

import pytest

from tests.jobset import __main__ as command
from tests.jobset.player import playing

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
    monkeypatch.setattr("sys.argv", ["tests.jobset", *args])
    return command.main()


def test_command_prints_each_scenario_and_exits_1_on_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    other = file.with_name("makes-other-jobs.yaml")
    other.write_text(SCENARIO.replace("workers-0", "workers-1"))
    monkeypatch.setattr(playing, "PATIENCE", 0.0)  # a missing expectation needs no waiting
    assert run(monkeypatch, str(file), str(other)) == 1
    good, *bad = capsys.readouterr().out.splitlines()
    assert good.startswith("makes-jobs: ok")
    assert bad == ["makes-other-jobs: steps[0] create", "  jobs are ['js-workers-0'], not ['js-workers-1']"]


def test_file_that_is_not_a_scenario(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text("about: nothing\n")
    with pytest.raises(SystemExit, match=r"makes-jobs\.yaml: lacks 'jobset'; give it a value"):
        run(monkeypatch, str(file))
