"""Paths are copied to a held successor whole or not at all, and nothing that a container wrote leads out of it."""

import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kubemend.agent.actuator import layer_copies
from kubemend.agent.actuator.layer_copies import OF_IMAGE, Budget, Limits
from kubemend.agent.actuator.layer_moves import ABSENT, KEPT, NO_KIND


class Layers(NamedTuple):
    """The upper directory of the old container, and the root of its successor."""

    old: Path
    root: Path

    def copy(self, path: str, *, limits: Limits | None = None, until: float | None = None) -> str:
        budget = Budget(limits or Limits(), until=time.monotonic() + 60 if until is None else until)
        old, root = opened = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in self]
        try:
            return layer_copies.copy_one(old, root, path, budget=budget)
        finally:
            for descriptor in opened:
                os.close(descriptor)


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    made = Layers(tmp_path / "old", tmp_path / "root")
    for each in made:
        each.mkdir()
    cache = made.old / "root" / "a" / "cache"
    (cache / "deep").mkdir(parents=True)
    (made.old / "root" / "a").chmod(0o2750)
    (cache / "deep" / "kernel").write_text("compiled")
    (cache / "deep" / "kernel").chmod(0o4755)
    os.utime(cache / "deep" / "kernel", ns=(1_000_000_001, 2_000_000_002))
    (cache / "out").symlink_to("/etc")
    cache.chmod(0o1711)
    return made


def tree(directory: Path) -> list[str]:
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*"))


def test_path_is_copied_with_all_that_is_in_it(layers: Layers) -> None:
    assert layers.copy("/root/a/cache") == KEPT
    assert tree(layers.root) == tree(layers.old)
    assert stat.S_IMODE((layers.root / "root/a").stat().st_mode) == 0o2750
    assert stat.S_IMODE((layers.root / "root/a/cache").stat().st_mode) == 0o1711
    kernel = layers.root / "root/a/cache/deep/kernel"
    found = kernel.stat()
    assert (kernel.read_text(), stat.S_IMODE(found.st_mode), found.st_mtime_ns) == ("compiled", 0o4755, 2_000_000_002)
    assert (layers.root / "root/a/cache/out").readlink() == Path("/etc")


def test_file_is_copied(layers: Layers) -> None:
    assert layers.copy("/root/a/cache/deep/kernel") == KEPT
    assert (layers.root / "root/a/cache/deep/kernel").read_text() == "compiled"


@pytest.mark.parametrize("path", ["/nowhere", "/root/nowhere", "/root/b/c/d"])
def test_absent_path_leaves_nothing(layers: Layers, path: str) -> None:
    assert layers.copy(path) == ABSENT
    assert tree(layers.root) == []


def test_what_the_image_has_is_not_replaced(layers: Layers) -> None:
    (layers.root / "root/a/cache").mkdir(parents=True)
    (layers.root / "root/a/cache/own").write_text("of the image")
    assert layers.copy("/root/a/cache") == OF_IMAGE
    assert tree(layers.root) == ["root", "root/a", "root/a/cache", "root/a/cache/own"]


def test_what_the_old_container_deleted_is_not_copied(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mknod(layers.old / "gone", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    assert layers.copy("/gone") == OF_IMAGE
    assert tree(layers.root) == []


@pytest.mark.parametrize("side", ["old", "root"])
@pytest.mark.parametrize("part", ["root", "root/a"])
def test_nothing_is_reached_through_a_link(layers: Layers, tmp_path: Path, side: str, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if side == "old":
        (layers.old / part).rename(elsewhere)
    else:
        elsewhere.mkdir()
        (layers.root / part).parent.mkdir(parents=True, exist_ok=True)
    target = getattr(layers, side) / part
    target.symlink_to(elsewhere)
    before, root = tree(elsewhere), tree(layers.root)
    assert layers.copy("/root/a/cache") != KEPT
    assert (tree(elsewhere), tree(layers.root)) == (before, root)


@pytest.mark.parametrize("name", ["link", "fifo"])
def test_special_files_are_not_kept_by_themselves(layers: Layers, name: str) -> None:
    (layers.old / "link").symlink_to("/etc")
    os.mkfifo(layers.old / "fifo")
    assert layers.copy(f"/{name}") == NO_KIND
    assert tree(layers.root) == []


def test_directory_with_a_special_file_leaves_nothing(layers: Layers) -> None:
    os.mkfifo(layers.old / "root/a/cache/deep/fifo")
    assert layers.copy("/root/a/cache") == "'fifo' in it is neither a directory, a file nor a link"
    assert tree(layers.root) == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(size=7), "more than 0 MiB would have to be copied"),
        (Limits(entries=3), "more than 3 files would have to be copied"),
    ],
)
def test_too_large_files_leave_nothing(layers: Layers, limits: Limits, reason: str) -> None:
    assert layers.copy("/root/a/cache", limits=limits) == reason
    assert tree(layers.root) == []


def test_holes_of_a_file_are_neither_counted_nor_filled(layers: Layers) -> None:
    """A database that maps a large file would fill the pod's storage, for which kubelet evicts it."""
    file = layers.old / "map"
    with file.open("wb") as written:
        written.write(b"first")
        written.seek(4 << 30)
        written.write(b"last")
        written.truncate(8 << 30)
    assert layers.copy("/map") == KEPT
    found = (layers.root / "map").stat()
    assert found.st_size == 8 << 30
    assert found.st_blocks * 512 < 1 << 20
    with (layers.root / "map").open("rb") as read:
        assert read.read(6) == b"first\0"
        read.seek(4 << 30)
        assert read.read(5) == b"last\0"


def test_nothing_is_copied_after_the_time(layers: Layers) -> None:
    assert layers.copy("/root/a/cache", until=0.0) == "it ran out of time"
    assert tree(layers.root) == []


def test_deep_directory_leaves_nothing(layers: Layers) -> None:
    (layers.old / "/".join(["d"] * 70)).mkdir(parents=True)
    assert layers.copy("/d") == "it is more than 64 directories deep"
    assert tree(layers.root) == []


@pytest.mark.parametrize("attribute", ["trusted.overlay.redirect", "trusted.overlay.metacopy"])
@pytest.mark.parametrize("name", ["deep", "deep/kernel"])
def test_what_needs_the_image_leaves_nothing(
    layers: Layers, monkeypatch: pytest.MonkeyPatch, attribute: str, name: str
) -> None:
    """A directory or file of the image that the old container renamed is not whole in its writable layer."""
    getxattr = os.getxattr
    inode = (layers.old / "root/a/cache" / name).stat().st_ino

    def marked(file: int, asked: str) -> bytes:
        if asked == attribute and os.fstat(file).st_ino == inode:
            return b"/of/the/image"
        return getxattr(file, asked)

    monkeypatch.setattr(os, "getxattr", marked)
    assert layers.copy("/root/a/cache") == f"the old container moved {Path(name).name!r} of the image there"
    assert tree(layers.root) == []


class KilledError(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def test_agent_killed_before_any_call_leaves_no_part_of_it_in_place(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tree(layers.old / "root/a/cache")
    for killed in range(10**6):
        count = iter(range(10**6))

        def dying(call: Any, count: Any = count, killed: int = killed) -> Any:
            def step(*args: Any, **named: Any) -> Any:
                if next(count) == killed:
                    raise KilledError
                return call(*args, **named)

            return step

        with monkeypatch.context() as patched:
            for name in ("mkdir", "symlink", "sendfile", "fchown", "fchmod", "utime", "rename"):
                patched.setattr(os, name, dying(getattr(os, name)))
            try:
                ended = layers.copy("/root/a/cache")
            except KilledError:
                ended = None
        if ended is not None:
            break
        assert not (layers.root / "root/a/cache").exists()
    assert ended == KEPT
    assert tree(layers.root / "root/a/cache") == whole


def test_next_agent_copies_what_a_killed_one_had_begun(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRI-O's container has run nothing, and the next agent resumes its swap."""

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KilledError):
            layers.copy("/root/a/cache")
    assert (layers.root / layer_copies._ASIDE / "copy/deep/kernel").exists()
    assert layers.copy("/root/a/cache") == KEPT
    assert tree(layers.root) == tree(layers.old)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_the_image_has_at_the_place_for_copies_is_left_alone(layers: Layers, tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = layers.root / layer_copies._ASIDE
    place.write_text("") if kind == "file" else place.symlink_to(tmp_path / "elsewhere")
    assert layers.copy("/root/a/cache") == "File exists"
    assert tree(layers.root) == [layer_copies._ASIDE]
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("path", ["/volume\r\r/", "/volume\r{mount} 1 0:1 / / rw - overlay x rw,upperdir=/mine\r"])
def test_volume_of_any_path_is_not_taken_for_the_root(tmp_path: Path, path: str) -> None:
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Path(f"/proc/self/fdinfo/{root}").open() as info:
            (mount,) = [line.split()[1] for line in info if line.startswith("mnt_id:")]
        volume = f"7 1 0:1 {path.format(mount=mount)} /data rw - ext4 /dev/sda rw\n"
        overlay = f"{mount} 1 0:1 / / rw - overlay overlay rw,upperdir=/upper,workdir=/work\n"
        (tmp_path / "mountinfo").write_bytes((volume + overlay).encode())
        assert layer_copies._is_mounted(root, process=tmp_path, at="/", upper="/upper")
        assert not layer_copies._is_mounted(root, process=tmp_path, at="/", upper="/mine")
    finally:
        os.close(root)
