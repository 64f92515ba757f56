"""Which mounts of a container are the GPU driver's libraries."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.actuator.hold.driver_hold import MOST_LIBRARIES, NotHeldError, library_mounts
from kubemend.agent.restart.overlap import Obstacle


def mount(place: str, *, number: int = 7, kind: str = "ext4") -> bytes:
    return f"{number} 303 254:0 /host/file {place} ro,nosuid,relatime master:1 - {kind} /dev/vda rw\n".encode()


@pytest.mark.parametrize(
    "name",
    [
        "libcuda.so",
        "libcuda.so.1",
        "libcuda.so.550.54.15",
        "libcudadebugger.so.550.54.15",
        "libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.550.54.15",
        "libEGL_nvidia.so.0",
        "libnvcuvid.so.1",
        "libnvoptix.so.1",
    ],
)
def test_mounted_library_of_the_driver_is_found(name: str) -> None:
    place = f"/usr/lib/x86_64-linux-gnu/{name}"
    assert library_mounts(mount("/") + mount(place, number=484) + mount("/data")) == [(484, place.encode())]


@pytest.mark.parametrize(
    "place", ["/", "/data", "/libcuda.so.1/", "/usr/lib/libc.so.6", "/bin/nvidia-smi", "/libcuda.so.1x"]
)
def test_other_mount_is_not_one(place: str) -> None:
    assert library_mounts(mount(place)) == []


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "ceph", "9p", ""])
def test_library_on_a_file_system_that_may_hang_is_refused(kind: str) -> None:
    with pytest.raises(NotHeldError) as refused:
        library_mounts(mount("/usr/lib/libcuda.so.1", kind=kind))
    assert refused.value.obstacle is Obstacle.FOREIGN_DRIVER


def test_more_libraries_than_the_limit_are_refused() -> None:
    mounts = [mount(f"/usr/lib/libcuda.so.{number}") for number in range(MOST_LIBRARIES + 1)]
    assert len(library_mounts(b"".join(mounts[:-1]))) == MOST_LIBRARIES
    with pytest.raises(NotHeldError) as refused:
        library_mounts(b"".join(mounts))
    assert refused.value.obstacle is Obstacle.TOO_MANY_LIBRARIES


@given(st.lists(st.binary(max_size=60) | st.just(b"/libcuda.so.1"), max_size=12))
def test_any_text_is_read_or_refused(fields: list[bytes]) -> None:
    with contextlib.suppress(NotHeldError):
        found = library_mounts(b" ".join(fields))
        assert all(place.rpartition(b"/")[2].startswith(b"lib") for _, place in found)
