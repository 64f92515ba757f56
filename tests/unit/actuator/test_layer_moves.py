"""Paths of the writable layer are moved whole or not at all, and nothing that a container wrote leads out of it."""

import errno
import os
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kubemend.agent.actuator import layer_moves
from kubemend.agent.actuator.layer_moves import ABSENT, KEPT
from kubemend.common import openat2

NOT_A_DIRECTORY = "a link or a file is on the way to it"
NO_KIND = "it is neither a directory nor a file"


class Uppers(NamedTuple):
    """The upper directories of two containers."""

    old: Path
    new: Path

    def move(self, path: str, *, until: float | None = None) -> str:
        old, new = opened = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in self]
        try:
            return layer_moves.move_one(old, new, path, until=time.monotonic() + 60 if until is None else until)
        finally:
            for descriptor in opened:
                os.close(descriptor)


@pytest.fixture
def uppers(tmp_path: Path) -> Uppers:
    made = Uppers(tmp_path / "old", tmp_path / "new")
    for each in made:
        each.mkdir()
    cache = made.old / "root" / "a" / "cache"
    cache.mkdir(parents=True)
    (made.old / "root" / "a").chmod(0o2750)
    (cache / "kernel").write_text("compiled")
    (cache / "out").symlink_to("/etc")
    os.mkfifo(cache / "fifo")
    return made


def tree(directory: Path) -> list[str]:
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*"))


def test_path_is_moved_with_all_that_is_in_it(uppers: Uppers) -> None:
    assert uppers.move("/root/a/cache") == KEPT
    assert tree(uppers.new) == ["root", "root/a", *(f"root/a/cache{each}" for each in ("", "/fifo", "/kernel", "/out"))]
    assert tree(uppers.old) == ["root", "root/a"]
    assert stat.S_IMODE((uppers.new / "root" / "a").stat().st_mode) == 0o2750
    assert uppers.move("/root/a/cache") == KEPT, "of an earlier call"


def test_file_is_moved(uppers: Uppers) -> None:
    assert uppers.move("/root/a/cache/kernel") == KEPT
    assert (uppers.new / "root/a/cache/kernel").read_text() == "compiled"
    assert (uppers.old / "root/a/cache/out").is_symlink()


@pytest.mark.parametrize("path", ["/nowhere", "/root/nowhere", "/root/b/c/d"])
def test_absent_path_leaves_nothing(uppers: Uppers, path: str) -> None:
    assert uppers.move(path) == ABSENT
    assert tree(uppers.new) == []


@pytest.mark.parametrize("part", ["root", "root/a", "root/a/cache"])
@pytest.mark.parametrize("kind", ["link", "loop", "file", "fifo"])
def test_nothing_is_reached_through_a_link(uppers: Uppers, tmp_path: Path, part: str, kind: str) -> None:
    """Any component may be replaced by something else."""
    elsewhere = tmp_path / "elsewhere"
    (uppers.old / part).rename(elsewhere)
    target = uppers.old / part
    match kind:
        case "link":
            target.symlink_to(elsewhere)
        case "loop":
            target.symlink_to(target)
        case "file":
            target.write_text("")
        case _:
            os.mkfifo(target)
    before = tree(elsewhere)
    assert uppers.move("/root/a/cache/kernel") == NOT_A_DIRECTORY
    assert tree(uppers.new) == []
    assert tree(elsewhere) == before


@pytest.mark.parametrize("name", ["fifo", "out"])
def test_special_files_are_not_kept_by_themselves(uppers: Uppers, name: str) -> None:
    assert uppers.move(f"/root/a/cache/{name}") == NO_KIND
    assert tree(uppers.new) == []


def test_link_in_the_new_directory_is_not_followed(uppers: Uppers, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir(mode=0o700)
    (uppers.new / "root").symlink_to(elsewhere)
    assert uppers.move("/root/a/cache") == NOT_A_DIRECTORY
    assert tree(elsewhere) == []
    assert (uppers.old / "root/a/cache/kernel").exists()


def test_what_the_new_container_has_is_not_replaced(uppers: Uppers) -> None:
    (uppers.new / "root/a/cache").mkdir(parents=True)
    assert uppers.move("/root/a/cache") == "the new container has it already"
    assert (uppers.old / "root/a/cache/kernel").exists()


def test_path_replaced_midway_does_not_lead_out(
    uppers: Uppers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not possible while nothing runs; were it, the open directories would still be those of the container."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cache").mkdir(parents=True)
    rename = os.rename

    def replaced(*args: Any, **named: Any) -> None:
        rename(uppers.old / "root/a", uppers.old / "root/moved")
        (uppers.old / "root/a").symlink_to(elsewhere)
        rename(*args, **named)

    monkeypatch.setattr(os, "rename", replaced)
    assert uppers.move("/root/a/cache") == KEPT
    assert tree(elsewhere) == ["cache"]
    assert (uppers.new / "root/a/cache/kernel").exists()


def test_directory_that_was_created_again_is_not_merged(uppers: Uppers, monkeypatch: pytest.MonkeyPatch) -> None:
    getxattr = os.getxattr
    inode = (uppers.old / "root").stat().st_ino

    def opaque(directory: int, attribute: str) -> bytes:
        if attribute == "trusted.overlay.opaque" and os.fstat(directory).st_ino == inode:
            return b"y"
        return getxattr(directory, attribute)

    monkeypatch.setattr(os, "getxattr", opaque)
    assert "replaced the image's directory 'root'" in uppers.move("/root/a/cache")
    assert tree(uppers.new) == []


def test_nothing_is_moved_after_the_time(uppers: Uppers) -> None:
    assert uppers.move("/root/a/cache", until=0.0) == "it ran out of time"
    assert (uppers.old / "root/a/cache/kernel").exists()


class KilledError(BaseException):
    """Stands for SIGKILL: nothing handles it."""


STEPS = ("mkdir", "fchown", "fchmod", "rename", "fstat", "stat")


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the agent before this call, counted from 0."""
    count = iter(range(10**6))

    def dying(call: Any) -> Any:
        def step(*args: Any, **named: Any) -> Any:
            if next(count) == number:
                raise KilledError
            return call(*args, **named)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    monkeypatch.setattr(openat2, "open_beneath", dying(openat2.open_beneath))


@pytest.fixture
def whole(uppers: Uppers) -> list[str]:
    return tree(uppers.old / "root/a/cache")


def is_whole_once(uppers: Uppers, whole: list[str]) -> bool:
    found = [each for each in uppers if (each / "root/a/cache").exists()]
    return [tree(each / "root/a/cache") for each in found] == [whole]


def test_agent_killed_before_any_call_leaves_it_whole_and_the_next_one_finishes(
    uppers: Uppers, whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    while True:
        with monkeypatch.context() as patched:
            kill_at(killed, patched)
            try:
                ended = uppers.move("/root/a/cache")
            except KilledError:
                ended = None
        assert is_whole_once(uppers, whole)
        if ended is not None:
            break
        killed += 1
    assert ended == KEPT
    assert killed > len(STEPS)
    assert tree(uppers.new / "root/a/cache") == whole
    assert stat.S_IMODE((uppers.new / "root/a").stat().st_mode) == 0o2750


def test_agent_killed_after_the_rename_has_moved_it(
    uppers: Uppers, whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def killed(*args: Any, **named: Any) -> None:
        rename(*args, **named)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        with pytest.raises(KilledError):
            uppers.move("/root/a/cache")
    assert is_whole_once(uppers, whole)
    assert uppers.move("/root/a/cache") == KEPT
    assert tree(uppers.new / "root/a/cache") == whole


@pytest.mark.parametrize(
    ("mountinfo", "mounted"),
    [
        (b"1 2 0:3 / /a rw - overlay overlay rw,lowerdir=/s/1,upperdir=/s/2/fs,workdir=/s/2/w\n", True),
        (b"1 2 0:3 / /a rw - overlay overlay rw,upperdir=/s/2/fs\n", True),
        (b"1 2 0:3 / /a rw - overlay overlay rw,upperdir=/s/2/fsx,lowerdir=/s/1\n", False),
        (b"1 2 0:3 / /s/2/fs rw - ext4 /dev/sda rw\n", False),
        (b"", False),
    ],
)
def test_mounted_directory_is_recognised(mountinfo: bytes, mounted: bool) -> None:
    assert layer_moves.is_mounted(b"upperdir=/s/2/fs", mountinfo) is mounted


def test_other_file_system_is_a_reason(uppers: Uppers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a project quota."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", refused)
    assert uppers.move("/root/a/cache") == "it lies on another file system"
