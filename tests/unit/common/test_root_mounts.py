"""The type of a process's root, with arbitrary user mounts."""

import os
from pathlib import Path

import pytest

from kubemend.common import root_mounts

ROOT = b"600 599 0:61 / / rw,relatime master:1 - %s %s rw\n"
PROC = b"601 600 0:62 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        (ROOT % (b"overlay", b"overlay") + PROC, "overlay"),
        (ROOT % (b"ext4", b"/dev/sda1") + PROC, "ext4"),
        (b"602 600 0:63 / /mnt/\xff - overlay x rw\n" + ROOT % (b"ext4", b"/dev/sda1"), "ext4"),
        (ROOT % (b"overlay", b"overlay") + ROOT % (b"tmpfs", b"none"), "tmpfs"),
        (b"600 599 0:61 / /\n- overlay\n\n", ""),
        (b"", None),
    ],
    ids=["overlay", "native", "names-in-any-bytes", "over-it", "nonsense", "gone"],
)
def test_root_type_is_the_topmost_mount(tmp_path: Path, mounts: bytes, kind: str | None) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mountinfo").write_bytes(mounts)
    assert root_mounts.kind(1, proc=tmp_path) == kind


def test_ended_process_is_unknown(tmp_path: Path) -> None:
    assert root_mounts.kind(1, proc=tmp_path) is None


def test_own_root_has_a_type() -> None:
    assert root_mounts.kind(os.getpid(), proc=Path("/proc"))
