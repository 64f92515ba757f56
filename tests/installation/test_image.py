"""The image that `make image` builds: its content, and that its programs start."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import packages
from hack.image import build
from tests import machine, sbom_schema

pytestmark = [pytest.mark.installation, pytest.mark.timeout(900)]

SECONDS: Final = 120.0
USER: Final = "65532:65532"
UNSHARE: Final = shutil.which("unshare") or "/usr/bin/unshare"
SCRIPT: Final = (
    'mount --bind /dev "$1/dev"; mount --bind /proc "$1/proc"; root="$1"; shift; '
    f'exec chroot --userspec={USER} "$root" "$@"'
)
"""The mounts that a runtime would give a container, in a mount namespace that ends with the command."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's archive, unpacked."""
    machine.must_run_containers()
    directory = tmp_path_factory.mktemp("image")
    with tarfile.open(build.ensure()) as tar:
        tar.extractall(directory, filter="tar")
    return directory


@pytest.fixture(scope="module")
def manifest(archive: Path) -> dict[str, Any]:
    (found,) = json.loads((archive / "manifest.json").read_text())
    return dict(found)


@pytest.fixture(scope="module")
def files(archive: Path, manifest: dict[str, Any]) -> set[str]:
    """Return the paths of all layers."""
    found = set[str]()
    for layer in manifest["Layers"]:
        with tarfile.open(archive / layer) as tar:
            found |= {f"/{name.lstrip('./')}" for name in tar.getnames()}
    return found


@pytest.fixture(scope="module")
def root(archive: Path, manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's file system, as a runtime would lay it out."""
    directory = tmp_path_factory.mktemp("root")
    for layer in manifest["Layers"]:
        subprocess.run(
            ("tar", "--extract", "--exclude=.wh.*", f"--file={archive / layer}", f"--directory={directory}"),
            check=True,
            timeout=SECONDS,
        )
    directory.chmod(0o755)
    return directory


@pytest.mark.timeout(2400)
def test_equal_sources_make_equal_images(tmp_path: Path) -> None:
    again = build.ensure(tmp_path)  # everything again, also the downloads
    for one, other in ((build.ensure(), again), (build.sbom_of(build.ensure()), build.sbom_of(again))):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest(), one.name


def test_list_of_the_content_names_every_locked_package_and_debians() -> None:
    text = build.sbom_of(build.ensure()).read_text()
    assert sbom_schema.problem(text) is None
    urls = {each["purl"].partition("?")[0] for each in json.loads(text)["components"]}
    python = {url.removeprefix("pkg:pypi/") for url in urls if url.startswith("pkg:pypi/")}
    locked = re.findall(r"^(\S+)==(\S+)(.*) \\$", (packages.CHECKOUT / "requirements.lock").read_text(), re.MULTILINE)
    needed = {f"{name}@{version}" for name, version, marker in locked if "win32" not in marker}
    assert needed | {f"kubemend@{build.version()}"} <= python
    assert {url.rpartition("@")[0] for url in urls} >= {"pkg:deb/debian/python3.11", "pkg:deb/debian/libssl3"}


def test_bytecode_in_the_image_is_valid_whatever_the_dates_of_its_sources(root: Path) -> None:
    compiled = sorted((root / "opt/kubemend").rglob("*.pyc")) + sorted((root / "usr/lib/python3.11").rglob("*.pyc"))
    assert len(compiled) > 1000
    unchecked = (1).to_bytes(4, "little")  # PEP 552
    assert [path for path in compiled if path.read_bytes()[4:8] != unchecked] == []


def run(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the image's command in its file system, as its user and with its variables."""
    variables = {"PATH": "/opt/kubemend/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    variables["HOME"] = "/"  # as runc sets it for a user without an entry in /etc/passwd
    return subprocess.run(
        (UNSHARE, "--mount", "--propagation=private", "sh", "-euc", SCRIPT, "sh", str(root), "kubemend", *words),
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_image_has_its_name_and_runs_as_the_manifests_expect(archive: Path, manifest: dict[str, Any]) -> None:
    assert manifest["RepoTags"] == [build.reference()]
    settings = json.loads((archive / manifest["Config"]).read_text())["config"]
    assert settings["User"] == USER
    assert (settings["Entrypoint"], settings["Cmd"]) == (["kubemend"], ["agent"])
    assert settings["Labels"]["org.opencontainers.image.version"] == build.version()
    assert any(each.startswith("LD_LIBRARY_PATH=/opt/nvml/1:") for each in settings["Env"])


def test_the_image_has_no_tools_and_no_caches_of_the_build(files: set[str]) -> None:
    left = ("/root/.cache", "/root/.pip", "/root/wheels", "/wheels", "/src", "/tmp/", "/opt/kubemend/bin/pip")
    assert [path for path in files if path.startswith(left)] == []
    assert [path for path in files if path.endswith(".whl") and not path.startswith("/usr/share/python-wheels/")] == []
    assert "/usr/local/lib/python3.11/dist-packages/.wh.pip" in files, "pip is removed from the image"


def test_the_images_programs_start(root: Path) -> None:
    reported = run(root, "--version")
    assert (reported.returncode, reported.stderr) == (0, ""), reported.stderr
    assert build.version() in reported.stdout
    for command in ("agent", "controller", "doctor", "scan"):
        reported = run(root, command, "--help")
        assert reported.returncode == 0, reported.stderr


def test_doctor_in_the_image_reports_missing_components(root: Path) -> None:
    reported = run(root, "doctor")
    assert reported.returncode == 1
    assert "Traceback" not in reported.stderr + reported.stdout
    assert "container-runtime" in reported.stdout, reported.stderr
