"""Roots of containers among the other mounts of the runtime."""

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.actuator.hold import rootfs_mount_watch
from kubemend.agent.actuator.hold.oci_runtimes import OciRuntimes
from kubemend.agent.actuator.hold.rootfs_mount_watch import RootfsMountWatcher
from kubemend.agent.model.workloads import ContainerId

ROOT = b"/run/io.containerd.runtime.v2.task/k8s.io/%s/rootfs"
MOUNT = b"36 35 0:%d / %s rw,relatime - %s none rw\n"


OVERLAY = MOUNT % (2, b"/run/k8s.io/c1/rootfs", b"overlay")


@given(st.binary())
def test_root_is_found_among_any_bytes(noise: bytes) -> None:
    found = rootfs_mount_watch._mounted_at("/c1/rootfs", noise + b"\n" + OVERLAY + noise)
    assert found == "/run/k8s.io/c1/rootfs"
    rootfs_mount_watch._mounted_at("/c1/rootfs", noise)


@pytest.mark.parametrize("mark", [b"\r", b"\x0b", b"\x1c", b"\xc2\x85"])
def test_only_blanks_separate_mount_fields(mark: bytes) -> None:
    overlay = OVERLAY.replace(b" / ", b" /a" + mark + b"b ")
    assert rootfs_mount_watch._mounted_at("/c1/rootfs", overlay) == "/run/k8s.io/c1/rootfs"


async def test_mount_name_that_is_not_unicode_hides_no_container(tmp_path: Path) -> None:
    overlay = MOUNT % (2, b"/run/io.containerd.runtime.v2.task/k8s.io/c1/rootfs", b"overlay")
    (tmp_path / "mountinfo").write_bytes(MOUNT % (1, b"/mnt/\xff", b"ext4") + overlay)
    found: asyncio.Queue[Path] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def then(root: Path) -> None:
        loop.call_soon_threadsafe(found.put_nowait, root)

    RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes()).wait_for(ContainerId("c1"), then)
    async with asyncio.timeout(60.0):
        assert (await found.get()).name == "rootfs"


def test_kinds_are_those_of_container_roots_only(tmp_path: Path) -> None:
    lines = [MOUNT % (1, b"/mnt/\xff", b"xfs"), MOUNT % (2, ROOT % (b"a" * 64), b"ext4")]
    (tmp_path / "mountinfo").write_bytes(b"".join(lines))
    assert RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes()).kinds() == {"ext4"}
    (tmp_path / "mountinfo").write_bytes(b"".join([*lines, MOUNT % (3, ROOT % (b"b" * 64), b"overlay")]))
    assert RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes()).kinds() == {"ext4", "overlay"}
    assert not RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes()).shows(ContainerId("a" * 64))
    assert RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes()).shows(ContainerId("b" * 64))


def test_a_root_whose_place_is_known_must_be_an_overlay(tmp_path: Path) -> None:
    merged = b"/var/lib/containers/storage/overlay/%s/merged"
    lines = [MOUNT % (1, merged % b"5", b"ext4"), MOUNT % (2, merged % b"6", b"overlay")]
    (tmp_path / "mountinfo").write_bytes(b"".join(lines))
    shown = {name: (merged % name).decode() for name in (b"5", b"6", b"7")}
    watcher = RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes())
    assert [watcher.shows(ContainerId("c1"), place) for place in shown.values()] == [False, True, False]


class Intercepted:
    """Stand in for the permission events of OCI runtimes."""

    def __init__(self) -> None:
        self.group = os.eventfd(0, os.EFD_CLOEXEC)
        self.is_open = True

    def asked(self) -> list[int]:
        return []

    def allow(self, asked: list[int]) -> None:
        assert not asked

    def close(self) -> None:
        os.close(self.group)
        self.is_open = False


async def test_without_a_free_thread_no_oci_runtime_stays_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would allow its executions: no container of the node could start any more."""
    (tmp_path / "mountinfo").write_bytes(
        MOUNT % (2, b"/run/io.containerd.runtime.v2.task/k8s.io/c1/rootfs", b"overlay")
    )
    intercepted: list[Intercepted] = []

    def executions(_: Sequence[Path]) -> Intercepted:
        intercepted.append(Intercepted())
        return intercepted[-1]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rootfs_mount_watch, "Executions", executions)
    watcher = RootfsMountWatcher(tmp_path, oci_runtimes=OciRuntimes())
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            watcher.wait_for(ContainerId("c0"), lambda _: None)
    assert [each.is_open for each in intercepted] == [False]
    mounted = threading.Event()
    watcher.wait_for(ContainerId("c1"), lambda _: mounted.set())
    assert await asyncio.to_thread(mounted.wait, 60.0)
