"""Take the container runtime's programs from Debian's own packages, unpacked next to the checkout.

Nothing is installed: containerd, runc, crun, the CNI plugins and busybox are unpacked below a cache directory and run
from there. apt fetches them from this machine's configured mirror, with private lists and caches, and checks their
signatures against Debian's keyring as always. Once unpacked they are used as they are; delete the cache to get newer
ones.

containerd comes from the newest suite whose build runs here: 2.x has what the agent requires (an event stream), while
bookworm's 1.6 does not and is fetched only to test that lack (``legacy=True``).
"""

import contextlib
import fcntl
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from hack.devnode import apt

log = structlog.get_logger(__name__)

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_CACHE = CHECKOUT / ".dev" / "packages"

_CONTAINERD = "usr/bin/containerd"
_TOOLS = ("runc", "containernetworking-plugins", "busybox-static")
_DBUS = ("dbus-daemon", "libdbus-1-3", "libapparmor1", "libexpat1")  # its other libraries are in every Debian
_NEWEST_SUITES = ("unstable", "testing", "stable")
_LEGACY_SUITE = "bookworm"
PYTHONS = {"3.9": "bullseye", "3.14": "unstable"}
"""The oldest and the newest Python that a Debian has, and of which suite: the launcher runs on both."""

_LENIENT_CRUN = """\
#!/bin/sh
v2=/sys/fs/cgroup/unified
[ -n "$(cat $v2/cgroup.controllers 2>/dev/null)" ] || exec {crun} "$@"
exec unshare --mount --propagation unchanged /bin/sh -c '
  mount --make-private "$0" && mount --bind /dev/null "$0/cgroup.controllers" && exec "$@"' $v2 {crun} "$@"
"""


class PackagesError(RuntimeError):
    """The programs cannot be fetched. The message is one line: the missing program, and the hint."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Locate the unpacked programs. ``version`` is containerd's, such as ``(2, 1, 9)``."""

    containerd_dir: pathlib.Path
    tools_dir: pathlib.Path
    version: tuple[int, ...]

    @property
    def containerd(self) -> pathlib.Path:
        """The daemon."""
        return self.containerd_dir / _CONTAINERD

    @property
    def ctr(self) -> pathlib.Path:
        """containerd's own client."""
        return self.containerd_dir / "usr/bin/ctr"

    @property
    def runc(self) -> pathlib.Path:
        """The OCI runtime."""
        return self.tools_dir / "usr/sbin/runc"

    @property
    def cni_dir(self) -> pathlib.Path:
        """The CNI plugins."""
        return self.tools_dir / "usr/lib/cni"

    @property
    def busybox(self) -> pathlib.Path:
        """A static busybox, for images."""
        return self.tools_dir / "bin/busybox"

    def reported(self) -> dict[str, str]:
        """Return the versions that containerd and runc report. Raises PackagesError."""
        versions = {"containerd": self.version, "runc": _version(self.tools_dir, self.runc)}
        return {name: f"v{'.'.join(map(str, each))}" for name, each in versions.items()}

    @property
    def search_path(self) -> str:
        """``PATH`` for containerd: it finds its shim there, and the shim runc."""
        own = (self.containerd.parent, self.runc.parent)
        return ":".join((*(str(path) for path in own), "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def ensure_packages(*, legacy: bool = False) -> Binaries:
    """Return the programs, fetching those that are not unpacked yet; concurrent callers are allowed.

    ``legacy`` asks for containerd 1.6 instead of the newest. Raises PackagesError.
    """
    tools = _ensure_unpacked("tools", packages=_TOOLS)
    name = "containerd-1.6" if legacy else "containerd"
    containerd = ensure(name, lambda target: _fetch_containerd(target, legacy=legacy))
    return Binaries(containerd, tools, version=_version(containerd, containerd / _CONTAINERD))


def ensure_host_packages(names: Sequence[str]) -> None:
    """Install the missing Debian packages (``gcc``, ``libc6-dev``, …) on this machine.

    Raises PackagesError when something is missing and cannot be installed.
    """
    missing = [name for name in names if not _installed(name)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise PackagesError(f"{', '.join(missing)} not installed; run as root: apt-get install {' '.join(missing)}")
    log.info("devnode.packages.installing", packages=missing)
    try:
        apt.install(missing)
    except apt.AptError as error:
        raise PackagesError(str(error)) from error


def ensure_promtool() -> pathlib.Path:
    """Return Prometheus' ``promtool``, with which tests check the alerts, fetching it if it is not unpacked yet.

    Raises PackagesError.
    """
    return _ensure_unpacked("prometheus", packages=("prometheus",)) / "usr/bin/promtool"


@dataclass(frozen=True, slots=True)
class Crun:
    """Locate the unpacked crun."""

    directory: pathlib.Path

    @property
    def program(self) -> pathlib.Path:
        """crun itself."""
        return self.directory / "usr/bin/crun"

    @property
    def lenient(self) -> pathlib.Path:
        """What a container runtime executes: a script that becomes crun.

        crun refuses a machine with cgroup v1 whose v2 hierarchy has any controller, so it sees none.
        """
        return self.directory / "lenient/crun-on-any-cgroups"


def ensure_crun() -> Crun:
    """Return crun, fetching it if it is not unpacked yet. Raises PackagesError.

    Debian 12's crun (1.8) refuses the OCI configurations of containerd 2 and CRI-O 1.34 ("unknown version specified"),
    which needs 1.14.3. So this is the newest release's, with the libraries of that release: it is linked against
    them by patchelf, because a wrapper would change the name of the process.
    """

    def fetch(target: pathlib.Path, patchelf: pathlib.Path) -> None:
        with staging(target) as folder:
            _unpack_linked("crun", suite="stable", patchelf=patchelf, into=folder, target=target)
            script = Crun(folder).lenient
            script.parent.mkdir()
            script.write_text(_LENIENT_CRUN.format(crun=Crun(target).program), encoding="utf-8")
            script.chmod(0o755)

    return Crun(_ensure_linked("crun", fetch))


def ensure_python(version: str) -> pathlib.Path:
    """Return the program of one of ``PYTHONS`` with its standard library, fetching it if it is not unpacked yet.

    Raises PackagesError.
    """
    name = f"python{version}"

    def fetch(target: pathlib.Path, patchelf: pathlib.Path) -> None:
        with staging(target) as folder:
            _unpack_linked(name, suite=PYTHONS[version], patchelf=patchelf, into=folder, target=target)

    return _ensure_linked(name, fetch) / "usr/bin" / name


@dataclass(frozen=True, slots=True)
class DbusDaemon:
    """Locate the unpacked message bus."""

    directory: pathlib.Path

    @property
    def program(self) -> pathlib.Path:
        """The daemon."""
        return self.directory / "usr/bin/dbus-daemon"

    @property
    def library_path(self) -> str:
        """``LD_LIBRARY_PATH`` of the libraries that came with it."""
        return ":".join(sorted({str(path.parent) for path in self.directory.glob("**/lib*.so.*")}))


def ensure_dbus_daemon() -> DbusDaemon:
    """Return the message bus of nodes whose kubelet follows the machine's shutdown, fetching it if it is not unpacked.

    Raises PackagesError.
    """
    return DbusDaemon(_ensure_unpacked("dbus", packages=_DBUS))


def _ensure_unpacked(name: str, *, packages: Sequence[str]) -> pathlib.Path:
    """Return the folder of packages of this machine's suite, fetching them if they are not unpacked yet."""

    def fetch(target: pathlib.Path) -> None:
        machine = apt.this_machine()
        with staging(target) as folder:
            apt.unpack(machine, suite=machine.codename, packages=packages, into=folder)

    return ensure(name, fetch)


def ensure(name: str, fetch: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the folder of that name, which ``fetch`` creates if it is missing. Raises PackagesError."""
    home = DEFAULT_CACHE / platform.machine()
    target = home / name
    if not target.is_dir():
        with lock(home):
            try:
                if not target.is_dir():
                    fetch(target)
            except (apt.AptError, OSError, subprocess.SubprocessError, StopIteration) as error:
                raise PackagesError(f"{name} cannot be unpacked: {error}") from error
    return target


def _fetch_containerd(target: pathlib.Path, *, legacy: bool) -> None:
    """Unpack containerd from the first suite with a build that runs here."""
    machine, reasons = apt.this_machine(), []
    suites = (_LEGACY_SUITE,) if legacy else (*_NEWEST_SUITES, machine.codename)
    for suite in suites:
        try:
            with staging(target) as folder:
                apt.unpack(machine, suite=suite, packages=("containerd",), into=folder)
                _version(folder, folder / _CONTAINERD)
        except (apt.AptError, PackagesError) as error:
            reasons.append(f"{suite}: {error}")
            continue
        if reasons:
            log.warning("devnode.packages.older_containerd", suite=suite, because=reasons)
        return
    raise PackagesError(f"no containerd from any of {', '.join(suites)}: {'; '.join(reasons)}")


def _ensure_linked(name: str, fetch: Callable[[pathlib.Path, pathlib.Path], None]) -> pathlib.Path:
    """Return the folder of that name, which ``fetch`` creates with patchelf if it is missing. Raises PackagesError."""
    target = DEFAULT_CACHE / platform.machine() / name
    if target.is_dir():
        return target
    patchelf = _ensure_unpacked("patchelf", packages=("patchelf",)) / "usr/bin/patchelf"
    return ensure(name, lambda folder: fetch(folder, patchelf))


def _unpack_linked(
    package: str, *, suite: str, patchelf: pathlib.Path, into: pathlib.Path, target: pathlib.Path
) -> None:
    """Unpack a package and its libraries ``into`` a folder; its program of that name will find them at ``target``."""
    apt.unpack_with_dependencies(apt.this_machine(), suite=suite, packages=(package,), into=into)
    loader = next(into.glob("**/lib/*/ld-linux-*.so.*")).relative_to(into)  # below usr since bookworm
    folders = ":".join(str(target / each / loader.parent.name) for each in ("usr/lib", "lib"))
    link = ("--set-interpreter", str(target / loader), "--force-rpath", "--set-rpath", folders)
    program = into / "usr/bin" / package
    subprocess.run((str(patchelf), *link, str(program)), check=True, timeout=30, capture_output=True)


def _version(folder: pathlib.Path, program: pathlib.Path) -> tuple[int, ...]:
    """Return the version of a program unpacked in a folder. Raises PackagesError when it does not run here.

    It may need a newer libc.
    """
    command = (str(program), "--version")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PackagesError(f"{program} does not run here; delete {folder} and try again ({error})") from error
    found = re.search(r" v?(\d+)\.(\d+)\.(\d+)", answer)
    if found is None:
        raise PackagesError(f"{program} reports no version; delete {folder} and try again")
    return tuple(int(number) for number in found.groups())


def _installed(package: str) -> bool:
    query = ("dpkg-query", "--show", "--showformat=${db:Status-Status}", package)
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout == "installed"
    except FileNotFoundError:
        raise PackagesError(f"the dev node needs Debian's {package}, and this is not a Debian: no dpkg-query") from None


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[None]:
    """Let one process at a time fetch. The lock ends with its holder, and all that a holder does has a deadline."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staging(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a folder that becomes ``target`` in one step on success, and is removed otherwise."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield folder
        folder.chmod(0o755)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
