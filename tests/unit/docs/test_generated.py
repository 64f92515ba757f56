"""Generated files are made by make, checked by lint, and listed for contributors."""

import re
from pathlib import Path
from typing import Final

import pytest

from hack import generated
from tests.unit.docs import pages

GENERATORS: Final = sorted(
    path.parent.stem if path.stem == "__main__" else path.stem
    for path in (pages.ROOT / "hack").glob("**/*.py")
    if re.search(r'generated\.main\(|"--check"', path.read_text("utf-8")) and path.stem != "generated"
)


def test_make_knows_every_generator() -> None:
    made = re.search(r"^GENERATORS := (.*)$", (pages.ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made is not None
    assert sorted(made[1].split()) == GENERATORS
    assert len(GENERATORS) > 1


@pytest.mark.parametrize("generator", GENERATORS)
def test_it_is_documented_for_contributors(generator: str) -> None:
    page = (pages.ROOT / "CONTRIBUTING.md").read_text()
    assert f"`python -m hack.{generator}`" in page.partition("## Generated files")[2]


def test_stale_files_are_reported_and_then_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    for name in ("same", "differs", "left"):
        (tmp_path / name).write_text("a")
    files = {
        tmp_path / "same": "a",
        tmp_path / "differs": "b",
        tmp_path / "below" / "missing": "c",
        tmp_path / "left": None,
        tmp_path / "absent": None,
    }
    assert generated.write("it", files, check=True) == 1
    assert capsys.readouterr().err == "not current: differs, below/missing, left; run python -m hack.it\n"
    assert (tmp_path / "differs").read_text() == "a"
    assert generated.write("it", files, check=False) == 0
    assert {path: generated.read(path) for path in files} == files
    assert generated.write("it", files, check=True) == 0
