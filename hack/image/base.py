"""Build a base image with Python 3.11 from Debian's packages, for machines that reach no registry.

It replaces ``python:3.11-slim-bookworm``: Debian 12 with Python 3.11, pip and CA certificates. The packages are
unpacked, not installed: no maintainer script runs, and only scanners know of them, from ``/var/lib/dpkg/status.d``.
That suffices to try kubemend on a dev node. An image to publish is built on a public base.
"""

import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable

from hack.devnode import apt
from hack.image import sbom

SUITE = "bookworm"
"""The only suite of Debian whose Python is 3.11, which requirements.lock is made for."""

_PACKAGES = (
    "base-files",
    "base-passwd",
    "ca-certificates",
    "coreutils",
    "dash",
    "libstdc++6",  # grpcio's wheel is linked to it
    "python3-pip-whl",
    "python3.11",
    "tzdata",
)
_PYTHON = "/usr/bin/python3.11"
_NEEDLESS = ("usr/share/doc", "usr/share/locale", "usr/share/man")
_SECONDS = 120.0


def build(archive: pathlib.Path) -> None:
    """Write the base's file system into a tar archive (as root). Raises apt.AptError."""
    with tempfile.TemporaryDirectory(prefix=".base-", dir=archive.parent) as directory:
        root = pathlib.Path(directory, "root")
        root.mkdir()
        root.chmod(0o755)
        unpacked = apt.unpack_with_dependencies(apt.this_machine(), suite=SUITE, packages=_PACKAGES, into=root)
        _list_packages(root / sbom.DPKG, unpacked)
        apt.move_below_usr(root)
        for name in apt.MERGED:
            (root / name).symlink_to(f"usr/{name}")
        _set_up_python(root)
        _configure(root)
        staged = pathlib.Path(directory, "base.tar")
        with tarfile.open(staged, "w") as tar:
            tar.add(root, arcname=".")
        staged.rename(archive)


def _list_packages(folder: pathlib.Path, controls: Iterable[str]) -> None:
    """Write the packages' control files to where scanners look for them."""
    folder.mkdir(parents=True)
    for control in controls:
        name = control.partition("Package: ")[2].partition("\n")[0]
        (folder / name).write_text(control, encoding="utf-8")


def _set_up_python(root: pathlib.Path) -> None:
    """Provide ``python`` and pip, as the public base has them, and compile the standard library."""
    (root / "usr/bin/python").symlink_to("python3.11")
    (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()  # nothing here belongs to dpkg
    (wheel,) = (root / "usr/share/python-wheels").glob("pip-*.whl")
    packages = root / "usr/local/lib/python3.11/dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    # By hash: the image's files all get one date, which bytecode that names its source's date would not survive. Python
    # writes such bytecode (-B: it does not) of the modules that compile the others, and without -f that would stay.
    by_hash = ("-B", "-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash")
    _run("chroot", str(root), _PYTHON, *by_hash, "/usr/lib/python3.11")


def _configure(root: pathlib.Path) -> None:
    """Write the few files that maintainer scripts would, and delete files that programs do not read."""
    for name in ("passwd", "group"):
        shutil.copyfile(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.write_text("".join(each.read_text(encoding="ascii") for each in certificates), encoding="ascii")
    for name in _NEEDLESS:
        shutil.rmtree(root / name)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        raise apt.AptError(f"{' '.join(command)} failed: {error.stderr.strip()[-300:]}; run it as root") from error
