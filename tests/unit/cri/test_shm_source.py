"""Where a container's /dev/shm is on the host, from the runtime's verbose answer."""

import json
from typing import Any

import pytest

from kubemend.agent.clients.cri import convert
from kubemend.common.pb.runtime.v1 import api_pb2

LABELS = {
    "io.kubernetes.pod.name": "p",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.uid": "u",
    "io.kubernetes.container.name": "c",
}


def source(*mounts: Any) -> str | None:
    return answered(*mounts).shm_source


def answered(*mounts: Any) -> convert.ContainerStatus:
    status = api_pb2.ContainerStatus(id="c1", labels=LABELS)
    info = {"info": json.dumps({"runtimeSpec": {"mounts": list(mounts)}})}
    answer = api_pb2.ContainerStatusResponse(status=status, info=info)
    return convert.container_status(answer, endpoint="/run/x.sock")


def mount(destination: str, where: str) -> dict[str, Any]:
    return {"destination": destination, "source": where, "type": "bind", "options": ["rbind", "rw"]}


def test_shm_source_is_the_mount_source() -> None:
    assert source(mount("/proc", "proc"), mount("/dev/shm", "/run/shm"), mount("/dev/shm/x", "/x")) == "/run/shm"


def test_later_mount_covers_an_earlier_one() -> None:
    assert source(mount("/dev/shm", "/run/shm"), mount("/dev/./shm/", "/volume")) == "/volume"


@pytest.mark.parametrize("mounts", [(), (mount("/dev", "tmpfs"),), (mount("/dev/shm", "shm"),), ("?",)])
def test_invalid_host_path_is_not_reported(mounts: tuple[Any, ...]) -> None:
    assert source(*mounts) is None


def test_cache_source_is_the_mount_source() -> None:
    below = mount("/var/cache/kubemend/trainer", "/elsewhere")
    status = answered(mount("/var/cache/kubemend", "/var/lib/kubelet/volume"), below)
    assert (status.cache_source, status.shm_source) == ("/var/lib/kubelet/volume", None)
