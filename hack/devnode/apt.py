"""Fetch Debian packages of any suite with apt, without touching the machine's own package state."""

import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = 300.0  # for one apt or dpkg command, over a slow line
MERGED = ("bin", "lib", "lib64", "sbin")
"""Links of a root to the same names in /usr, as every Debian since 12 has them. Packages may have directories there."""

_KEYRINGS = (
    pathlib.Path("/usr/share/keyrings/debian-archive-keyring.pgp"),  # since trixie
    pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
)


class AptError(RuntimeError):
    """A package cannot be fetched. The message is one line: what, where, and the hint."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Describe this machine's package source: the mirror's address and the suite it runs."""

    mirror: str
    codename: str


def this_machine() -> Machine:
    """Read the machine's own apt set-up. Raises AptError when this is not a Debian or has no Debian source."""
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian":
        raise AptError(f"the dev node's programs come from Debian; this is {release.get('PRETTY_NAME', 'not one')}")
    codename = release.get("VERSION_CODENAME", "")
    targets = _run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    for line in targets.splitlines():
        site, suite, component = line.rsplit(" ", 2)
        if suite == codename and component == "main":
            return Machine(mirror=site, codename=codename)
    raise AptError(f"apt has no source for {codename}/main; add one to /etc/apt/sources.list.d and try again")


def unpack(machine: Machine, *, suite: str, packages: Sequence[str], into: pathlib.Path) -> None:
    """Download packages of a suite and unpack them into a folder; nothing is installed, no script runs.

    Raises AptError when the mirror cannot be reached, its signature is invalid, or a package does not exist.
    """
    with tempfile.TemporaryDirectory(prefix="kubemend-apt-") as name:
        work = pathlib.Path(name)
        options = _private_set_up(machine, suite=suite, work=work)
        _run("apt-get", *options, "update")
        downloads = work / "downloads"
        downloads.mkdir()
        _run("apt-get", *options, "download", *packages, folder=downloads)
        for package in sorted(downloads.glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), str(into))


def unpack_with_dependencies(
    machine: Machine, *, suite: str, packages: Sequence[str], into: pathlib.Path, beside: pathlib.Path | None = None
) -> list[str]:
    """Unpack packages of a suite together with all their dependencies; nothing is installed, no script runs.

    Returns the control file of each package. ``beside`` is the dpkg status file of a system: its installed packages are
    not unpacked. None means everything, as for an empty system. Raises AptError as ``unpack`` does.
    """
    with tempfile.TemporaryDirectory(prefix="kubemend-apt-") as name:
        work = pathlib.Path(name)
        options = _private_set_up(machine, suite=suite, work=work)
        if beside is not None:
            shutil.copyfile(beside, work / "status")
        _run("apt-get", *options, "update")
        _run("apt-get", *options, "install", "--download-only", "--yes", "--no-install-recommends", *packages)
        archives = sorted((work / "cache" / "archives").glob("*.deb"))
        for package in archives:
            _run("dpkg-deb", "--extract", str(package), str(into))
        return [_run("dpkg-deb", "--field", str(package)) for package in archives]


def move_below_usr(root: pathlib.Path) -> None:
    """Move what was unpacked into directories of the names in ``MERGED``, as Debian's package usrmerge does."""
    for name in MERGED:
        if (root / name).is_dir():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(root / name)


def install(packages: Sequence[str]) -> None:
    """Install packages on this machine (as root). Raises AptError."""
    _run("apt-get", "update")
    _run("apt-get", "install", "--yes", "--no-install-recommends", *packages)


def _private_set_up(machine: Machine, *, suite: str, work: pathlib.Path) -> list[str]:
    """Return options that make apt use one suite of the machine's mirror, and keep everything in ``work``."""
    keyring = next((path for path in _KEYRINGS if path.exists()), None)
    signed_by = f"[signed-by={keyring}] " if keyring is not None else ""
    sources = work / "sources.list"
    sources.write_text(f"deb {signed_by}{machine.mirror} {suite} main\n", encoding="utf-8")
    (work / "status").touch()
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True)
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",  # pins are meant for the machine itself
        "Dir::Etc::preferencesparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",  # nothing is installed, so only the suite's own packages are candidates
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "APT::Sandbox::User": "root",  # the _apt user cannot read private folders
        "APT::Update::Error-Mode": "any",  # an unreachable mirror is an error, not a warning
    }
    return [option for key, value in settings.items() for option in ("-o", f"{key}={value}")]


def _run(program: str, *arguments: str, folder: pathlib.Path | None = None) -> str:
    if shutil.which(program) is None:
        raise AptError(f"{program} is not on this machine; the dev node needs a Debian")
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    command = [program, *arguments]
    action = next((word for word in arguments if word in ("update", "download", "install", "--extract", "--field")), "")
    what = f"{program} {action}".strip()
    try:
        answer = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise AptError(f"{what} did not end within {_SECONDS:g} s; check the network and the mirror") from None
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if line.startswith(("E:", "dpkg-deb:"))]
        raise AptError(
            f"{what} failed: {lines[0] if lines else answer.stderr.strip()[-300:]}; check network and mirror"
        )
    return answer.stdout
