"""Provide file systems of their own: small ones that are quickly full, and other kinds than the machine's."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hack.devnode import packages

_BTRFS_BYTES = 1 << 30  # sparse; btrfs needs some hundred megabytes for itself


@contextlib.contextmanager
def small(where: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte there."""
    where.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@contextlib.contextmanager
def btrfs(where: Path) -> Iterator[Path]:
    """Mount a btrfs there, in a file next to it. Raises packages.PackagesError."""
    packages.ensure_host_packages(["btrfs-progs"])
    where.mkdir(parents=True)
    image = where.with_name(f"{where.name}.image")
    with image.open("wb") as file:
        file.truncate(_BTRFS_BYTES)
    try:
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-t", "btrfs", "-o", "loop", str(image), str(where)], check=True)
        try:
            yield where
        finally:
            subprocess.run(["umount", str(where)], check=True)
    finally:
        image.unlink()


def fill(disk: Path) -> Path:
    """Fill the disk; removing the returned file frees space again."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return filler
