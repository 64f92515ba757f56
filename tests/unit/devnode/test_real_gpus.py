"""A container gets what it needs to compute on this machine's GPUs: its own GPUs' nodes, and the driver's libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.devnode import deviceplugin, realgpus

GPUS = (realgpus.RealGpu("GPU-a", minor=0), realgpus.RealGpu("GPU-b", minor=3))


def test_container_gets_the_nodes_of_its_own_gpus() -> None:
    answer = deviceplugin.usable(
        ["GPU-b"], gpus=GPUS, libraries={"/opt/driver/lib/libcuda.so.1": Path("/usr/lib/real")}
    )

    assert dict(answer.envs) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "LD_LIBRARY_PATH": "/opt/driver/lib",
    }
    (mount,) = answer.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == (
        "/opt/driver/lib/libcuda.so.1",
        "/usr/lib/real",
        True,
    )
    assert [each.host_path for each in answer.devices if each.host_path[-1].isdigit()] == ["/dev/nvidia3"]


def test_nodes_that_the_driver_has_not_made_are_left_out(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    nodes = realgpus.device_nodes(GPUS[:1], directory=tmp_path)
    assert [each.name for each in nodes] == ["nvidia0", "nvidiactl", "nvidia-uvm"]


def test_libraries_are_found_under_every_name_that_programs_load(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.580.1").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (tmp_path / "libnvidia-glcore.so.580.1").touch()
    assert realgpus.named_libraries(tmp_path) == {
        "/opt/driver/lib/libcuda.so.1": tmp_path / "libcuda.so.580.1",
        "/opt/driver/lib/libcuda.so.580.1": tmp_path / "libcuda.so.580.1",
    }


def test_machine_without_a_driver_reports_that(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([sys.executable], 1, stdout="", stderr="Traceback\nNVMLError: no driver\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(realgpus.NoGpusError, match="no usable NVIDIA GPU: NVMLError: no driver"):
        realgpus.find()
