"""Roots of containers in the runtime's mounts, among whatever else is mounted there."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.actuator import roots
from agent.actuator.roots import Roots
from agent.model.workloads import ContainerId

ROOT = b"/run/io.containerd.runtime.v2.task/k8s.io/%s/rootfs"
MOUNT = b"36 35 0:%d / %s rw,relatime - %s none rw\n"


OVERLAY = MOUNT % (2, b"/run/k8s.io/c1/rootfs", b"overlay")


@given(st.binary())
def test_a_root_is_found_among_any_bytes(noise: bytes) -> None:
    found = roots._root(ContainerId("c1"), noise + b"\n" + OVERLAY + noise)
    assert found == "/run/k8s.io/c1/rootfs"
    roots._root(ContainerId("c1"), noise)


@pytest.mark.parametrize("mark", [b"\r", b"\x0b", b"\x1c", b"\xc2\x85"])
def test_only_a_blank_parts_what_is_said_of_a_mount(mark: bytes) -> None:
    overlay = OVERLAY.replace(b" / ", b" /a" + mark + b"b ")
    assert roots._root(ContainerId("c1"), overlay) == "/run/k8s.io/c1/rootfs"


async def test_a_mount_whose_name_is_no_unicode_hides_no_container(tmp_path: Path) -> None:
    overlay = MOUNT % (2, b"/run/io.containerd.runtime.v2.task/k8s.io/c1/rootfs", b"overlay")
    (tmp_path / "mountinfo").write_bytes(MOUNT % (1, b"/mnt/\xff", b"ext4") + overlay)
    found: asyncio.Queue[Path] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def then(root: Path) -> None:
        loop.call_soon_threadsafe(found.put_nowait, root)

    Roots(tmp_path).wait_for(ContainerId("c1"), then)
    async with asyncio.timeout(60.0):
        assert (await found.get()).name == "rootfs"


def test_the_kinds_of_containers_roots_are_told_and_of_nothing_else(tmp_path: Path) -> None:
    lines = [MOUNT % (1, b"/mnt/\xff", b"xfs"), MOUNT % (2, ROOT % (b"a" * 64), b"ext4")]
    (tmp_path / "mountinfo").write_bytes(b"".join(lines))
    assert Roots(tmp_path).kinds() == {"ext4"}
    (tmp_path / "mountinfo").write_bytes(b"".join([*lines, MOUNT % (3, ROOT % (b"b" * 64), b"overlay")]))
    assert Roots(tmp_path).kinds() == {"ext4", "overlay"}
    assert not Roots(tmp_path).shows(ContainerId("a" * 64))
    assert Roots(tmp_path).shows(ContainerId("b" * 64))
