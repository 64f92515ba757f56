"""``kubemend timeline`` on a cluster."""

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kubemend.cli import main, reaching
from tests.unit.cli.builders import restart
from tests.unit.cli.conftest import Cluster

DRAWN, NOTHING, USAGE, UNKNOWN = 0, 1, 2, 3
NAME = "train-3-1f2e"


async def test_a_round_is_drawn_as_text(cluster: Cluster) -> None:
    await cluster.put(restart())
    result = await cluster.run("timeline", NAME)
    assert (result.exit_code, result.stderr) == (DRAWN, "")
    assert result.stdout.splitlines()[0] == "train, attempt 3: Done in 340 ms"
    assert "✖ train-2" in result.stdout
    assert "\x1b" not in result.stdout, "no colours without a terminal"


@pytest.mark.parametrize("name", [f"team/{NAME}", f"restart/{NAME}", f"rst/{NAME}"])
async def test_a_restart_may_be_named_as_in_kubectl(cluster: Cluster, name: str) -> None:
    await cluster.put(restart())
    assert (await cluster.run("timeline", name)).exit_code == DRAWN


async def test_a_round_is_an_object_for_programs(cluster: Cluster) -> None:
    await cluster.put(restart())
    reported = json.loads((await cluster.run("timeline", NAME, "-o", "json")).stdout)
    assert (reported["decided"], reported["all_dead"], reported["total"], reported["left_out"]) == (40, 240, 340, 0)
    assert reported["bars"][1]["member"] == "train-2"
    assert reported["bars"][1]["segments"][-1] == {"step": "release", "begin": 240, "end": 290}


async def test_a_picture_goes_to_a_file(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    await cluster.put(restart())
    first, again = tmp_path / "first.svg", tmp_path / "again.svg"
    for path in (first, again):
        result = await cluster.run("timeline", NAME, "-o", "svg", "--output-file", str(path))
        assert (result.exit_code, result.output) == (DRAWN, "")
    assert first.read_text().startswith("<?xml")
    assert first.read_bytes() == again.read_bytes()


async def test_missing_matplotlib_gives_the_install_hint(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.put(restart())
    monkeypatch.delitem(sys.modules, "kubemend.cli.bars_svg", raising=False)
    monkeypatch.delattr("kubemend.cli.bars_svg", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = await cluster.run("timeline", NAME, "-o", "svg")
    assert (result.exit_code, result.stdout) == (NOTHING, "")
    assert result.stderr == "Error: pictures need matplotlib: pip install '.[plots]' in a checkout of kubemend\n"


async def test_a_file_that_cannot_be_written_is_named(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.put(restart())
    path = tmp_path / "missing" / "round.txt"
    result = await cluster.run("timeline", NAME, "--output-file", str(path))
    assert result.exit_code == NOTHING
    assert result.stderr == f"Error: cannot write {path}: No such file or directory\n"


async def test_a_file_is_utf8_in_every_locale(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.put(restart())
    path = tmp_path / "round.txt"
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "latin-1")
    result = await cluster.run("timeline", NAME, "--output-file", str(path))
    assert (result.exit_code, result.output) == (DRAWN, "")
    assert "✖ train-2" in path.read_text("utf-8")


async def test_a_round_that_has_not_ended_is_nothing_to_draw(cluster: Cluster) -> None:
    await cluster.put(restart(status=None))
    result = await cluster.run("timeline", NAME)
    assert (result.exit_code, result.stdout) == (NOTHING, "")
    assert "has not ended yet" in result.stderr


async def test_forged_restart_gives_one_line(cluster: Cluster) -> None:
    forged = restart(status=None)
    forged["metadata"]["annotations"]["kubemend.io/round"] = "[" * 100_000
    await cluster.put(forged)
    result = await cluster.run("timeline", NAME)
    assert (result.exit_code, result.stdout) == (NOTHING, "")
    assert "has an unknown format" in result.stderr


async def test_missing_restart_is_named(cluster: Cluster) -> None:
    result = await cluster.run("timeline", NAME)
    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    assert result.stderr == f"Error: there is no Restart {NAME} in namespace team: kubectl get restarts -A lists them\n"


async def test_missing_resource_gives_the_install_hint(empty_cluster: Cluster) -> None:
    result = await empty_cluster.run("timeline", NAME)
    assert (result.exit_code, result.stderr) == (UNKNOWN, f"Error: {reaching.NOT_INSTALLED}\n")


@pytest.mark.parametrize("name", ["", "a/b/c", "/a", "a/", "other/train"])
def test_invalid_name_is_refused(name: str) -> None:
    assert CliRunner().invoke(main, ["timeline", name, "-n", "team"]).exit_code == USAGE
