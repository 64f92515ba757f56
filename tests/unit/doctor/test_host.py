"""The doctor's checks of the host: kernel log, cgroups, directories, mounts."""

import errno
import os
from pathlib import Path

import pytest

from kubemend.agent.doctor import directories, kernel
from kubemend.agent.doctor.checks import Result
from kubemend.agent.sources import kmsg_readers

# --- kernel log


async def test_readable_kernel_log_is_ok(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,100,-;hello\n")

    (check,) = await kernel.log_readable(log, proc=tmp_path)

    assert check.result is Result.OK


async def test_missing_kernel_log_fails_with_mount_hint(tmp_path: Path) -> None:
    (check,) = await kernel.log_readable(tmp_path / "none", proc=tmp_path)

    assert check.result is Result.FAIL
    assert "mount the host's /dev/kmsg" in check.hint


async def test_path_that_is_not_a_kernel_log_fails(tmp_path: Path) -> None:
    (check,) = await kernel.log_readable(tmp_path, proc=tmp_path)

    assert check.result is Result.FAIL
    assert "regular file" in check.hint


@pytest.mark.parametrize("restrict", ["0\n", "1\n", None])
async def test_forbidden_kernel_log_fails_with_capability_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restrict: str | None
) -> None:
    def refuse(path: Path) -> kmsg_readers.RecordReader:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(kmsg_readers, "open_log", refuse)
    switch = tmp_path / "sys" / "kernel" / "dmesg_restrict"
    switch.parent.mkdir(parents=True)
    if restrict is not None:
        switch.write_text(restrict)

    (check,) = await kernel.log_readable(Path("/dev/kmsg"), proc=tmp_path)

    assert check.result is Result.FAIL
    assert "capability SYSLOG" in check.hint
    assert ("dmesg_restrict" in check.hint) == (restrict == "1\n")


@pytest.mark.parametrize(("namespace", "result"), [("0", Result.WARN), (None, Result.OK)])
async def test_pids_of_another_namespace_than_the_kernels_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str | None, result: Result
) -> None:
    log = tmp_path / "kmsg"
    log.write_text("")
    opened = kmsg_readers.open_log(log)
    monkeypatch.setattr(kmsg_readers, "open_log", lambda _: opened)
    if namespace is not None:
        (tmp_path / "1" / "ns").mkdir(parents=True)
        (tmp_path / "1" / "ns" / "pid").write_text(namespace)

    (check,) = await kernel.log_readable(Path("/dev/null"), proc=tmp_path)

    assert check.result is result


# --- cgroups


def group(root: Path, *files: str) -> Path:
    """Create the cgroup file systems of a sysfs, with these files."""
    for name in files:
        path = root / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize(
    ("files", "result", "expected"),
    [
        (("cgroup.controllers", "kubepods.slice/cgroup.freeze"), Result.OK, "cgroup v2"),
        (("cgroup.controllers", "cgroup.freeze", "kubelet/cgroup.freeze"), Result.OK, "cgroup v2"),
        (("cgroup.controllers", "cgroup.freeze"), Result.WARN, "own cgroup only"),
        (("cgroup.controllers", "kubepods.slice/cgroup.procs"), Result.WARN, "without a freezer"),
        (("freezer/cgroup.procs", "memory/cgroup.procs"), Result.WARN, "cgroup v1:"),
        (("freezer/cgroup.procs", "unified/cgroup.controllers"), Result.WARN, "hierarchy without a freezer"),
        (
            ("freezer/cgroup.procs", "unified/cgroup.controllers", "unified/kubepods/cgroup.freeze"),
            Result.OK,
            "v1 with",
        ),
        ((), Result.UNKNOWN, "no cgroup file system"),
    ],
)
async def test_cgroup_check_by_version(tmp_path: Path, files: tuple[str, ...], result: Result, expected: str) -> None:
    (check,) = await kernel.freezer(group(tmp_path, *files))

    assert check.result is result
    assert expected in check.what
    assert bool(check.hint) == (result is not Result.OK)


async def test_read_only_freezer_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = group(tmp_path, "cgroup.controllers", "kubepods/cgroup.freeze")
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    (check,) = await kernel.freezer(sysfs)

    assert check.result is Result.WARN
    assert "cannot be written" in check.what


# --- directories


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_state_directory_is_written_and_left_clean(tmp_path: Path) -> None:
    (check,) = await directories.state(tmp_path)

    assert check.result in (Result.OK, Result.WARN)  # depends on the file system of the tests
    assert names(tmp_path) == []


async def test_missing_state_directory_is_checked_by_its_parent(tmp_path: Path) -> None:
    (check,) = await directories.state(tmp_path / "a" / "b")

    assert check.result in (Result.OK, Result.WARN)
    assert names(tmp_path) == []


async def test_read_only_state_directory_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    (check,) = await directories.state(file)

    assert check.result is Result.FAIL
    assert "--state-dir" in check.hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free space"), (errno.EROFS, "mount it writable"), (errno.EIO, "local disk")],
)
async def test_disk_that_does_not_sync_fails_with_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)

    (check,) = await directories.state(tmp_path)

    assert check.result is Result.FAIL
    assert hint in check.hint
    assert names(tmp_path) == []


async def test_nearly_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:4], 1, *real[5:])))

    (check,) = await directories.state(tmp_path)

    assert check.result is Result.WARN
    assert "0 MiB are free" in check.what


@pytest.mark.parametrize(
    ("kind", "result", "expected"),
    [
        ("ext4", Result.OK, "synced"),
        ("xfs", Result.OK, "synced"),
        ("tmpfs", Result.WARN, "lost at a reboot"),
        ("overlay", Result.WARN, "lost with the container"),
        ("nfs4", Result.WARN, "remote"),
    ],
)
def test_state_check_by_file_system_type(kind: str, result: Result, expected: str) -> None:
    check = directories.state_check(Path("/var/lib/kubemend"), kind=kind)

    assert check.result is result
    assert expected in check.what


async def test_disabled_links_are_not_needed() -> None:
    (check,) = await directories.log_links(None)

    assert check.result is Result.NOT_NEEDED


async def test_writable_links_directory_is_ok(tmp_path: Path) -> None:
    (check,) = await directories.log_links(tmp_path)

    assert check.result is Result.OK


async def test_missing_links_directory_fails(tmp_path: Path) -> None:
    (check,) = await directories.log_links(tmp_path / "none")

    assert check.result is Result.FAIL
    assert "--pod-log-symlinks" in check.hint


async def test_read_only_links_directory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    (check,) = await directories.log_links(tmp_path)

    assert check.result is Result.FAIL
    assert check.hint == "mount it writable"


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
def test_innermost_and_latest_mount_applies(path: str, kind: str) -> None:
    assert directories.file_system(Path(path), mounts=MOUNTS) == kind


def test_path_outside_all_mounts_is_unknown() -> None:
    assert directories.file_system(Path("/x"), mounts="") == "unknown"


def test_own_mounts_have_a_root() -> None:
    assert directories.file_system(Path("/"), mounts=directories.own_mounts()) != "unknown"
