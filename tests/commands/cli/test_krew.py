"""The plugin for krew: its manifest, and that the installed program runs this release with its arguments."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from hack.devnode.packages import CHECKOUT
from hack.krew import __main__ as command
from hack.krew import packaging

RELEASES: Final = "https://example.com/kubemend/releases/download"
CHECK: Final = "validate-krew-manifest"
FAKE: Final = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The directory with archive and manifest."""
    answer = CliRunner().invoke(command.main, [f"--releases={RELEASES}", str(tmp_path / "krew")])
    assert answer.exit_code == 0, answer.output
    return tmp_path / "krew"


def manifest(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((directory / packaging.MANIFEST).read_text())
    return found


def called(program: Path, *runners: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """Call the plugin where only these runners of Python programs exist; each prints its own command line."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in runners:
        (tools / name).write_text(FAKE)
        (tools / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", str(program), "status", "-n", "a b"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_manifest_names_the_release_and_the_archives_digest(written: Path) -> None:
    spec = manifest(written)["spec"]
    (platform,) = spec["platforms"]
    version = packaging.project().version
    assert spec["version"] == f"v{version}"
    assert platform["uri"] == f"{RELEASES}/v{version}/{packaging.ARCHIVE}"
    assert platform["sha256"] == hashlib.sha256((written / packaging.ARCHIVE).read_bytes()).hexdigest()
    with tarfile.open(written / packaging.ARCHIVE) as tar:
        assert {each.name: each.mode for each in tar} == {platform["bin"]: 0o755, "LICENSE": 0o644}


def test_archive_is_the_same_again() -> None:
    first, second = (packaging.archive(packaging.project(), releases=RELEASES) for _ in range(2))
    assert first == second


def test_plugin_has_the_name_of_the_packages_command() -> None:
    assert f'kubectl-{packaging.NAME} = "kubemend.cli:main"' in (CHECKOUT / "pyproject.toml").read_text()


@pytest.mark.parametrize("releases", ["http://example.com", "", "example.com"])
def test_address_that_is_not_https_is_refused(tmp_path: Path, releases: str) -> None:
    answer = CliRunner().invoke(command.main, [f"--releases={releases}", str(tmp_path / "krew")])
    assert answer.exit_code == 2
    assert not (tmp_path / "krew").exists()


@pytest.mark.parametrize(
    ("runners", "expected"),
    [
        (("uvx", "pipx"), ["uvx", "--quiet", "--python", ">=3.11", "--from"]),
        (("pipx",), ["pipx", "run", "--quiet", "--spec"]),
    ],
)
def test_plugin_runs_this_release(written: Path, tmp_path: Path, runners: tuple[str, ...], expected: list[str]) -> None:
    with tarfile.open(written / packaging.ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    answer = called(tmp_path / "kubectl-mend", *runners, tmp_path=tmp_path)
    version = packaging.project().version
    release = f"kubemend @ {RELEASES}/v{version}/kubemend-{version}-py3-none-any.whl"  # and not from a package index
    assert answer.stdout.splitlines() == [*expected, release, "kubectl-mend", "status", "-n", "a b"]


def test_plugin_without_a_runner_names_its_requirement(written: Path, tmp_path: Path) -> None:
    with tarfile.open(written / packaging.ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    answer = called(tmp_path / "kubectl-mend", tmp_path=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "uv" in answer.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_krew_accepts_the_manifest_and_installs_the_plugin(written: Path, tmp_path: Path) -> None:
    programs = packaging.KREW.ensure(CHECKOUT / ".dev" / "krew")
    check = [str(programs / CHECK), "-skip-install", "-manifest", str(written / packaging.MANIFEST)]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    files = [f"--manifest={written / packaging.MANIFEST}", f"--archive={written / packaging.ARCHIVE}"]
    (tmp_path / "krew-root" / "index" / "default").mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "KREW_ROOT": str(tmp_path / "krew-root"), "HOME": str(tmp_path)}
    installed = subprocess.run(
        [programs / "krew", "install", *files], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert installed.returncode == 0, installed.stderr
    answer = called(tmp_path / "krew-root" / "bin" / "kubectl-mend", "uvx", tmp_path=tmp_path)
    assert answer.stdout.splitlines()[-4:] == ["kubectl-mend", "status", "-n", "a b"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_krews_check_refuses_a_manifest_without_a_digest(written: Path) -> None:
    programs = packaging.KREW.ensure(CHECKOUT / ".dev" / "krew")
    broken = manifest(written)
    broken["spec"]["platforms"][0]["sha256"] = ""
    (written / packaging.MANIFEST).write_text(yaml.safe_dump(broken))
    check = [str(programs / CHECK), "-skip-install", "-manifest", str(written / packaging.MANIFEST)]
    assert subprocess.run(check, capture_output=True, timeout=60, check=False).returncode != 0
