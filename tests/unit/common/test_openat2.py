"""Paths are resolved as the owner of the tree sees them, and never lead out of it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.common import openat2


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """A root directory with a secret next to it."""
    (tmp_path / "root" / "tmp").mkdir(parents=True)
    (tmp_path / "secret").write_text("the node's")
    descriptor = os.open(tmp_path / "root", os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def read(tree: int, path: str) -> str:
    with os.fdopen(openat2.open_in_root(tree, path, flags=os.O_RDONLY)) as file:
        return file.read()


def test_a_path_begins_at_the_root(tree: int, tmp_path: Path) -> None:
    (tmp_path / "root" / "tmp" / "beat").write_text("inside")
    assert read(tree, "/tmp/beat") == "inside"
    assert read(tree, "/../../../tmp/beat") == "inside"


def test_absolute_links_stay_inside(tree: int, tmp_path: Path) -> None:
    (tmp_path / "root" / "run").symlink_to("/tmp")
    (tmp_path / "root" / "tmp" / "beat").write_text("inside")
    assert read(tree, "/run/beat") == "inside"


@pytest.mark.parametrize("target", ["../../secret", "/../secret", "../../../../../../../../secret"])
def test_no_link_leads_out(tree: int, tmp_path: Path, target: str) -> None:
    (tmp_path / "root" / "tmp" / "beat").symlink_to(target)
    with pytest.raises(FileNotFoundError):
        read(tree, "/tmp/beat")


def test_no_magic_link_leads_out() -> None:
    proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            openat2.open_in_root(proc, "root/etc/passwd", flags=os.O_RDONLY)
    finally:
        os.close(proc)


def test_o_path_does_not_block_on_a_fifo(tree: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root" / "tmp" / "beat")
    opened = openat2.open_in_root(tree, "/tmp/beat", flags=os.O_PATH)
    try:
        assert stat.S_ISFIFO(os.fstat(opened).st_mode)
    finally:
        os.close(opened)


def test_missing_path_is_named(tree: int) -> None:
    with pytest.raises(FileNotFoundError) as error:
        openat2.open_in_root(tree, "/tmp/none", flags=os.O_PATH)
    assert error.value.filename == "/tmp/none"


def test_a_program_does_not_inherit_opened_files(tree: int) -> None:
    opened = openat2.open_in_root(tree, "/tmp", flags=os.O_PATH)
    try:
        assert not os.get_inheritable(opened)
    finally:
        os.close(opened)


def opened_beneath(tree: int, path: str) -> int:
    return openat2.open_beneath(tree, path, flags=os.O_RDONLY)


def test_beneath_opens_files_below_the_directory(tree: int) -> None:
    opened = opened_beneath(tree, "tmp")
    assert not os.get_inheritable(opened)
    os.close(opened)


@pytest.mark.parametrize(
    ("path", "reason"), [("link", "symbolic links"), ("/tmp", "cross-device"), ("..", "cross-device")]
)
def test_beneath_follows_no_link_and_leads_nowhere_else(tree: int, tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "root" / "link").symlink_to("tmp")
    with pytest.raises(OSError, match=reason):
        opened_beneath(tree, path)


def test_beneath_does_not_cross_a_mount() -> None:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="cross-device"):
            opened_beneath(root, "proc")
    finally:
        os.close(root)
