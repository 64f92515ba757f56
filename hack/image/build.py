"""Build the image with Debian's buildah, in namespaces and directories of its own, and write it to an archive.

Nothing is installed and only the cache directory remains: buildah and the libraries that this machine lacks are
unpacked there and laid over /usr in a mount namespace that ends with the build. Python's packages are downloaded by
this machine's pip, with its settings, and the build installs them from there: the Dockerfile itself is unchanged.
"""

import hashlib
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence

import structlog

from hack.devnode import apt, packages
from hack.image import base, sbom

log = structlog.get_logger(__name__)

NAME = "docker.io/library/kubemend"
"""The full form, to container runtimes, of ``kubemend``, the image's name in the manifests."""

DEFAULT_CACHE = packages.CHECKOUT / ".dev" / "image"

_BASE = "localhost/kubemend-python:3.11"
_DOCKERFILE = packages.CHECKOUT / "Dockerfile"
_LOCKS = (packages.CHECKOUT / "requirements.lock", packages.CHECKOUT / "requirements-build.lock")
_HOME = "/root"  # the builder's home directory in the image; pip reads its settings there
_PIP_SETTINGS = f"[global]\nno-index = true\nfind-links = {_HOME}/wheels\n"
_PIP_TARGET = ("--python-version=3.11", "--only-binary=:all:", "--quiet", "--disable-pip-version-check")
_DATE = 1_767_225_600  # 2026-01-01
_SECONDS = 900.0
_LOG_LINES = 15


class ImageError(RuntimeError):
    """The image cannot be built. The message has the failed step, the end of its output, and the hint."""


def version() -> str:
    """Return the version that the image is tagged with: the Dockerfile's default."""
    found = re.search(r"^ARG VERSION=(\S+)$", _DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ImageError(f"{_DOCKERFILE} sets no default for VERSION")
    return found[1]


def reference() -> str:
    """Return the image's full name with its tag."""
    return f"{NAME}:{version()}"


def archive(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return the path of the image of the present sources and date, existing or not, as an archive in Docker's format.

    Raises ImageError.
    """
    return cache / platform.machine() / f"kubemend-{_digest(_sources())}-{date()}.tar"


def sbom_of(archive: pathlib.Path) -> pathlib.Path:
    """Return the path of the list of an archive's content."""
    return archive.with_suffix(".cdx.json")


def date() -> int:
    """Return the date of all files in the image, in seconds since 1970: ``$SOURCE_DATE_EPOCH``, or a fixed one.

    So equal sources make equal images (reproducible-builds.org/docs/source-date-epoch). Raises ImageError.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", str(_DATE))
    if not given.isdecimal():
        raise ImageError(f"$SOURCE_DATE_EPOCH is {given!r}; give it seconds since 1970, or unset it")
    return int(given)


def ensure(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return the archive with the image of the present sources, after building it if necessary.

    Concurrent callers are allowed. Needs root, and Debian's mirror and PyPI the first time. Raises ImageError.
    """
    target = archive(cache)
    if not target.is_file():
        with packages.lock(target.parent):
            if not target.is_file():
                _build(target)
    return target


def _sources() -> list[pathlib.Path]:
    """Return the build's inputs: the files that .dockerignore sends, the Dockerfile, and these build programs."""
    sent = (packages.CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    roots = [packages.CHECKOUT / line.removeprefix("!") for line in sent if line.startswith("!")]
    found = [path for root in (*roots, pathlib.Path(__file__).parent) for path in (root, *root.rglob("*"))]
    return sorted({_DOCKERFILE, *(path for path in found if path.is_file() and path.suffix != ".pyc")})


def _digest(paths: Iterable[pathlib.Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(packages.CHECKOUT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _build(target: pathlib.Path) -> None:
    """Build it, holding the lock: the remains of an earlier unfinished build are removed first."""
    home = target.parent
    for left in (*home.glob(".build-*"), *home.glob(".base-*")):
        shutil.rmtree(left)
    try:
        buildah = _buildah(home / "buildah")
        rootfs = _base(home / f"base-{base.SUITE}.tar")
    except apt.AptError as error:
        raise ImageError(str(error)) from error
    wheels = _wheels(home / f"wheels-{_digest(_LOCKS)}")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=home) as directory:
        work = pathlib.Path(directory)
        builder = _builders_home(work / "home", wheels=wheels)
        (work / "context").mkdir()
        (work / "context" / rootfs.name).hardlink_to(rootfs)
        log.info("image.building", image=reference())
        staged = work / "image.tar"
        script = _script(buildah, work=work, home=builder, rootfs=rootfs.name, staged=staged)
        _run(_isolated(script), what="buildah")
        for older in home.glob("kubemend-*"):
            older.unlink()
        listed = sbom.document(sbom.read(staged), suite=base.SUITE, created=date())
        sbom_of(target).write_text(listed, encoding="utf-8")
        staged.rename(target)


def _buildah(target: pathlib.Path) -> pathlib.Path:
    if not target.is_dir():
        log.info("image.buildah", into=str(target))
        machine = apt.this_machine()
        installed = pathlib.Path("/var/lib/dpkg/status")
        with packages.staging(target) as folder:
            apt.unpack_with_dependencies(
                machine, suite=machine.codename, packages=("buildah",), into=folder, beside=installed
            )
    return target


def _base(target: pathlib.Path) -> pathlib.Path:
    if not target.is_file():
        log.info("image.base", suite=base.SUITE)
        base.build(target)
    return target


def _wheels(target: pathlib.Path) -> pathlib.Path:
    """Download the locked packages, those of the image and those that build it, once for each version of the locks."""
    if not target.is_dir():
        log.info("image.wheels", into=str(target))
        download = (sys.executable, "-m", "pip", "download", *_PIP_TARGET)
        with packages.staging(target) as folder:
            for lock in _LOCKS:
                locked = ("--no-deps", "--require-hashes", f"--requirement={lock}")
                _run((*download, f"--dest={folder}", *locked), what="pip download")
        for older in target.parent.glob("wheels-*"):
            if older != target:
                shutil.rmtree(older)
    return target


def _builders_home(home: pathlib.Path, *, wheels: pathlib.Path) -> pathlib.Path:
    """Create the home directory that the build sees: the wheels, and pip's settings that name them."""
    (home / ".pip").mkdir(parents=True)
    (home / ".pip" / "pip.conf").write_text(_PIP_SETTINGS, encoding="utf-8")
    shutil.copytree(wheels, home / "wheels", copy_function=os.link)
    return home


def _script(buildah: pathlib.Path, *, work: pathlib.Path, home: pathlib.Path, rootfs: str, staged: pathlib.Path) -> str:
    """Return the shell script that builds the base and the image on it, and writes the archive."""
    policy = f"--signature-policy={_file(buildah, 'etc/containers/policy.json')}"
    program = [
        "buildah",
        f"--root={work / 'storage'}",
        f"--runroot={work / 'run'}",
        "--storage-driver=overlay",
        f"--registries-conf={_file(buildah, 'etc/containers/registries.conf')}",
    ]
    build = [*program, "build", "--isolation=chroot", f"--timestamp={date()}", policy]
    on_base = [f"--build-arg=PYTHON={_BASE}", f"--volume={home}:{_HOME}:ro", f"--tag={reference()}"]
    on_base += [f"--build-arg=SOURCE_DATE_EPOCH={date()}"]
    commands = (
        ["mount", "-t", "tmpfs", "tmpfs", "/var/lib"],  # it keeps a cache in /var/lib/containers
        ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={buildah / 'usr'}:/usr", "/usr"],
        ["export", f"CONTAINERS_CONF={_file(buildah, 'usr/share/containers/containers.conf')}", f"TMPDIR={work}"],
        [*build, f"--tag={_BASE}", f"--file={work / 'context' / 'Dockerfile'}", str(work / "context")],
        [*build, *on_base, str(packages.CHECKOUT)],
        [*program, "push", policy, reference(), f"docker-archive:{staged}:{reference()}"],
    )
    (work / "context" / "Dockerfile").write_text(f"FROM scratch\nADD {rootfs} /\n", encoding="utf-8")
    return "\n".join(shlex.join(command) for command in commands)


def _file(buildah: pathlib.Path, name: str) -> pathlib.Path:
    """Return a file of buildah's packages, of which only those were unpacked that this machine lacks."""
    return buildah / name if (buildah / name).exists() else pathlib.Path("/", name)


def _isolated(script: str) -> tuple[str, ...]:
    """Return the command that runs a script whose mounts and processes all end with it."""
    namespaces = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ("unshare", *namespaces, "sh", "-euc", script)


def _run(command: Sequence[str], *, what: str) -> None:
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(f"{what} did not end within {_SECONDS:g} s; is the network slow?") from None
    if answer.returncode != 0:
        end = "\n".join(answer.stdout.splitlines()[-_LOG_LINES:])
        raise ImageError(f"{what} failed ({answer.returncode}); it needs root, Debian's mirror and PyPI:\n{end}")
