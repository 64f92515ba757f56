"""Emptying a compile cache on a real file system, whatever a container has put there."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubemend.agent.actuator import cache_removal
from kubemend.agent.actuator.cache_removal import Access, Bounds, Removed
from kubemend.agent.restart.cache import Place, Volume
from kubemend.common import cache_volume

UID = "0c1f6f9e"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, and make files immutable")


@dataclass
class Node:
    """A node whose runtime is this process, and the cache volume of a pod."""

    access: Access
    place: Place
    directory: Path

    @property
    def trainers(self) -> Path:
        return self.directory / "trainer"

    def empty(self, *, seconds: float = 60.0, entries: int = 100_000) -> Removed | None:
        return cache_removal.empty(self.access, self.place, bounds=Bounds(time.monotonic() + seconds, entries))

    def remove(self, *, entries: int = 100_000) -> Removed:
        return cache_removal.remove(self.access, self.place.volume, bounds=Bounds(time.monotonic() + 60.0, entries))

    def left(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    path = f"{UID}/volumes/kubernetes.io~empty-dir/{cache_volume.NAME}"
    directory = tmp_path / "kubelet" / "pods" / path
    (directory / "trainer").mkdir(parents=True)
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "root").symlink_to("/")
    socket_path = str(tmp_path / "cri.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_path)
        listening.listen()
        place = Place(Volume(str(tmp_path / "kubelet" / "pods"), path), "trainer")
        yield Node(Access(socket_path, tmp_path / "proc"), place, directory)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_containers_directory_goes_and_others_stay(node: Node) -> None:
    (node.trainers / "triton" / "ab").mkdir(parents=True)
    (node.trainers / "triton" / "ab" / "kernel.so").write_bytes(b"x" * 4096)
    (node.trainers / "dangling").symlink_to("nowhere")
    os.mkfifo(node.trainers / "fifo")
    (node.directory / "shipper").mkdir()
    (node.directory / "shipper" / "log").touch()
    removed = node.empty()
    assert removed == Removed(entries=6)
    assert node.left() == {"shipper"}
    assert (node.directory / "shipper" / "log").exists()


def test_container_without_a_directory_has_nothing_to_empty(node: Node) -> None:
    node.trainers.rmdir()
    assert node.empty() is None
    assert node.left() == set()


def test_expired_time_leaves_the_directory_in_place(node: Node) -> None:
    """The successor may have begun to use it."""
    (node.trainers / "kernel").touch()
    with pytest.raises(TimeoutError):
        node.empty(seconds=0.0)
    assert (node.trainers / "kernel").exists()


def test_links_are_removed_and_not_followed(node: Node, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    (node.trainers / "directory").symlink_to(tmp_path / "outside")
    (node.trainers / "file").symlink_to(tmp_path / "outside" / "precious")
    os.link(tmp_path / "outside" / "precious", node.trainers / "hard")
    assert node.empty() == Removed(entries=4)
    assert (tmp_path / "outside" / "precious").exists()


def test_link_in_place_of_the_directory_is_removed_itself(node: Node, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    node.trainers.rmdir()
    node.trainers.symlink_to(tmp_path / "outside")
    assert node.empty() == Removed(entries=1)
    assert node.left() == set()
    assert (tmp_path / "outside" / "precious").exists()


@pytest.mark.parametrize(("above", "reason"), [(0, "Not a directory"), (1, "symbolic links"), (3, "symbolic links")])
def test_link_in_place_of_the_volume_or_above_is_refused(node: Node, tmp_path: Path, above: int, reason: str) -> None:
    moved = [node.directory, *node.directory.parents][above]
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=reason):
        node.empty()
    assert node.trainers.exists()


def test_kubelets_directory_may_lie_behind_a_link(node: Node, tmp_path: Path) -> None:
    (tmp_path / "kubelet").rename(tmp_path / "disk")
    (tmp_path / "kubelet").symlink_to("disk")
    assert node.empty() == Removed(entries=1)


def test_names_that_are_not_utf_8_are_removed(node: Node) -> None:
    for name in (b"\xff\xfe", b"\xe4", b"new\nline", b"-rf", b"\x1b[2J"):
        directory = node.trainers / os.fsdecode(name)
        directory.mkdir()
        (directory / "kernel").touch()
    assert node.empty() == Removed(entries=11)
    assert node.left() == set()


def test_deep_tree_is_removed(node: Node) -> None:
    """Deeper than a path may be long, and than there may be open files."""
    depth = 3000
    opened = os.open(node.trainers, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deeper", dir_fd=opened)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=opened))
        below = os.open("deeper", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = below
    os.close(opened)
    before = open_files()
    assert node.empty() == Removed(entries=2 * depth + 1)
    assert node.left() == set()
    assert open_files() == before


def test_large_directory_is_moved_at_once_and_removed_in_slices(node: Node) -> None:
    for number in range(1000):
        (node.trainers / f"kernel-{number}").touch()
    removed = node.empty(entries=300)
    assert removed is not None
    assert (removed.entries, removed.cut_short) == (300, True)
    assert not node.trainers.exists(), "the successor can begin"
    node.trainers.mkdir()
    (node.trainers / "of-the-successor").touch()
    slices = [node.remove(entries=300) for _ in range(3)]
    assert [each.entries for each in slices] == [300, 300, 101]
    assert [each.is_complete for each in slices] == [False, False, True]
    assert node.left() == {"trainer"}
    assert (node.trainers / "of-the-successor").exists()


def test_tree_that_grows_is_removed_within_bounds(node: Node) -> None:
    """Another container of the pod writes into the files that were moved aside."""
    (node.trainers / "kernel").touch()
    node.empty(entries=0)
    (aside,) = node.directory.iterdir()
    for number in range(3):
        for name in range(50):
            (aside / f"{number}-{name}").touch()
        removed = node.remove(entries=40)
        assert (removed.entries, removed.cut_short) == (40, True)
    assert node.remove().is_complete
    assert node.left() == set()


def test_pod_that_has_gone_leaves_nothing_to_remove(node: Node) -> None:
    node.trainers.rmdir()
    node.directory.rmdir()
    assert node.remove() == Removed()
    with pytest.raises(FileNotFoundError):
        node.empty()


def test_volume_with_many_other_names_does_not_exceed_the_time(node: Node) -> None:
    (node.directory / "a").touch()
    removed = cache_removal.remove(node.access, node.place.volume, bounds=Bounds(time.monotonic()))
    assert removed == Removed(cut_short=True)


@as_root
def test_immutable_file_is_left_with_a_reason(node: Node) -> None:
    (node.trainers / "sub").mkdir()
    (node.trainers / "sub" / "kernel").touch()
    (node.trainers / "other").touch()
    subprocess.run(["chattr", "+i", str(node.trainers / "sub" / "kernel")], check=True)
    try:
        removed = node.empty()
        assert removed is not None
        assert removed.left == ["'kernel': Operation not permitted", "'sub': Directory not empty"]
        assert not node.trainers.exists()
        (aside,) = node.directory.iterdir()
        assert [path.name for path in aside.iterdir()] == ["sub"]
        assert not node.remove().is_complete
    finally:
        subprocess.run(["chattr", "-R", "-i", str(node.directory)], check=True)
    assert node.remove().is_complete


@as_root
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_mount_in_the_cache_is_not_entered(node: Node, tmp_path: Path, kind: str) -> None:
    """Also one of the same file system."""
    (tmp_path / "outside").mkdir()
    mounted = node.trainers / "mounted"
    mounted.mkdir()
    (node.trainers / "kernel").touch()
    command = ["mount", "--bind", str(tmp_path / "outside")] if kind == "bind" else ["mount", "-t", "tmpfs", "none"]
    subprocess.run([*command, str(mounted)], check=True)
    try:
        (mounted / "precious").touch()
        removed = node.empty()
        assert removed is not None
        assert removed.left == ["'mounted': Invalid cross-device link"]
        (aside,) = node.directory.iterdir()
        mounted = aside / "mounted"
        assert (mounted / "precious").exists()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    assert node.remove().is_complete


@as_root
def test_volume_in_memory_is_refused(node: Node) -> None:
    node.trainers.rmdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(node.directory)], check=True)
    try:
        node.trainers.mkdir()
        with pytest.raises(OSError, match="cross-device"):
            node.empty()
        assert node.trainers.exists()
    finally:
        subprocess.run(["umount", str(node.directory)], check=True)
