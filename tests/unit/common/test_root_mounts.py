"""The kind of a process's root, from what anybody may have mounted there."""

import os
from pathlib import Path

import pytest

from common import root_mounts

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
def test_the_kind_of_a_root_is_what_lies_on_top(tmp_path: Path, mounts: bytes, kind: str | None) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mountinfo").write_bytes(mounts)
    assert root_mounts.kind(1, proc=tmp_path) == kind


def test_a_process_that_is_gone_cannot_be_told(tmp_path: Path) -> None:
    assert root_mounts.kind(1, proc=tmp_path) is None


def test_our_own_root_is_told() -> None:
    assert root_mounts.kind(os.getpid(), proc=Path("/proc"))
