"""The host as doctor sees it: kernel log, cgroups, directories, mounts."""

import errno
import os
from pathlib import Path

import pytest

from agent.doctor import cgroups, directories, kernel_log, mounts
from agent.doctor.checks import Result
from agent.sources import kmsg_readers

# --- kernel log


async def test_a_kernel_log_that_can_be_read_is_well(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,100,-;hello\n")

    (check,) = await kernel_log.readable(log, proc=tmp_path)

    assert check.result is Result.OK


async def test_a_missing_kernel_log_fails_with_what_to_mount(tmp_path: Path) -> None:
    (check,) = await kernel_log.readable(tmp_path / "none", proc=tmp_path)

    assert check.result is Result.FAIL
    assert "mount the host's /dev/kmsg" in check.mend


async def test_what_is_no_kernel_log_fails(tmp_path: Path) -> None:
    (check,) = await kernel_log.readable(tmp_path, proc=tmp_path)

    assert check.result is Result.FAIL
    assert "regular file" in check.mend


@pytest.mark.parametrize("restrict", ["0\n", "1\n", None])
async def test_a_forbidden_kernel_log_asks_for_the_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restrict: str | None
) -> None:
    def refuse(path: Path) -> kmsg_readers.RecordReader:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(kmsg_readers, "open_log", refuse)
    switch = tmp_path / "sys" / "kernel" / "dmesg_restrict"
    switch.parent.mkdir(parents=True)
    if restrict is not None:
        switch.write_text(restrict)

    (check,) = await kernel_log.readable(Path("/dev/kmsg"), proc=tmp_path)

    assert check.result is Result.FAIL
    assert "capability SYSLOG" in check.mend
    assert ("dmesg_restrict" in check.mend) == (restrict == "1\n")


# --- cgroups


def group(root: Path, *files: str) -> Path:
    """Make the cgroup file systems of a sysfs, with these files."""
    for name in files:
        path = root / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize(
    ("files", "result", "says"),
    [
        (("cgroup.controllers", "kubepods.slice/cgroup.freeze"), Result.OK, "cgroup v2"),
        (("cgroup.controllers", "cgroup.freeze", "kubelet/cgroup.freeze"), Result.OK, "cgroup v2"),
        (("cgroup.controllers", "cgroup.freeze"), Result.WARN, "own cgroup only"),
        (("cgroup.controllers", "kubepods.slice/cgroup.procs"), Result.WARN, "without a freezer"),
        (("freezer/cgroup.procs", "memory/cgroup.procs"), Result.WARN, "cgroup v1:"),
        (("freezer/cgroup.procs", "unified/cgroup.controllers"), Result.WARN, "beside it without a freezer"),
        (
            ("freezer/cgroup.procs", "unified/cgroup.controllers", "unified/kubepods/cgroup.freeze"),
            Result.OK,
            "v1 with",
        ),
        ((), Result.UNKNOWN, "no cgroup file system"),
    ],
)
async def test_each_kind_of_cgroups(tmp_path: Path, files: tuple[str, ...], result: Result, says: str) -> None:
    (check,) = await cgroups.freezer(group(tmp_path, *files))

    assert check.result is result
    assert says in check.what
    assert bool(check.mend) == (result is not Result.OK)


async def test_a_freezer_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = group(tmp_path, "cgroup.controllers", "kubepods/cgroup.freeze")
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    (check,) = await cgroups.freezer(sysfs)

    assert check.result is Result.WARN
    assert "cannot be written" in check.what


# --- directories


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_state_is_written_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (check,) = await directories.state(tmp_path)

    assert check.result in (Result.OK, Result.WARN)  # by the file system that tests run on
    assert names(tmp_path) == []


async def test_a_state_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    (check,) = await directories.state(tmp_path / "a" / "b")

    assert check.result in (Result.OK, Result.WARN)
    assert names(tmp_path) == []


async def test_a_state_directory_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    (check,) = await directories.state(file)

    assert check.result is Result.FAIL
    assert "--state-dir" in check.mend


@pytest.mark.parametrize(
    ("number", "mend"),
    [(errno.ENOSPC, "make room"), (errno.EROFS, "mount it writable"), (errno.EIO, "local disk")],
)
async def test_a_disk_that_does_not_sync_fails_with_its_own_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, mend: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)

    (check,) = await directories.state(tmp_path)

    assert check.result is Result.FAIL
    assert mend in check.mend
    assert names(tmp_path) == []


async def test_a_nearly_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:4], 1, *real[5:])))

    (check,) = await directories.state(tmp_path)

    assert check.result is Result.WARN
    assert "0 MiB are free" in check.what


@pytest.mark.parametrize(
    ("kind", "result", "says"),
    [
        ("ext4", Result.OK, "synced"),
        ("xfs", Result.OK, "synced"),
        ("tmpfs", Result.WARN, "lost at a reboot"),
        ("overlay", Result.WARN, "lost with the container"),
        ("nfs4", Result.WARN, "remote"),
    ],
)
def test_what_each_kind_of_file_system_means_for_state(kind: str, result: Result, says: str) -> None:
    check = directories.state_check(Path("/var/lib/kubemend"), kind=kind)

    assert check.result is result
    assert says in check.what


async def test_links_that_are_turned_off_are_not_needed() -> None:
    (check,) = await directories.log_links(None)

    assert check.result is Result.NOT_NEEDED


async def test_a_directory_for_links_is_well_if_it_can_be_written(tmp_path: Path) -> None:
    (check,) = await directories.log_links(tmp_path)

    assert check.result is Result.OK


async def test_a_missing_directory_for_links_fails(tmp_path: Path) -> None:
    (check,) = await directories.log_links(tmp_path / "none")

    assert check.result is Result.FAIL
    assert "--pod-log-symlinks" in check.mend


async def test_a_read_only_directory_for_links_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    (check,) = await directories.log_links(tmp_path)

    assert check.result is Result.FAIL
    assert check.mend == "mount it writable"


# --- mounts

MOUNTS = r"""
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 0:30 / /var rw - xfs /dev/vdb rw
29 28 0:31 / /var/lib/with\040blank rw,relatime shared:2 master:1 - nfs4 server:/x rw
30 28 0:32 / /var/lib/twice rw - xfs /dev/vdc rw
31 30 0:33 / /var/lib/twice rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/x", "ext4"),
        ("/var/log", "xfs"),
        ("/variable", "ext4"),
        ("/var/lib/with blank/deep", "nfs4"),
        ("/var/lib/twice", "tmpfs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert mounts.file_system(Path(path), mounts=MOUNTS) == kind


def test_a_path_in_no_mount_is_unknown() -> None:
    assert mounts.file_system(Path("/x"), mounts="") == "unknown"


def test_our_own_mounts_have_a_root() -> None:
    assert mounts.file_system(Path("/"), mounts=mounts.own()) != "unknown"
