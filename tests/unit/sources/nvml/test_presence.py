"""Detection of NVML and GPUs by files alone, and the status of the source."""

from pathlib import Path

import pytest

from hack.fakenvml.control import FakeNvml
from hack.fakenvml.layout import Driver
from kubemend.agent.sources.nvml import detection
from kubemend.common.components import ComponentState
from tests.unit.sources.nvml.conftest import Start
from tests.unit.sources.nvml.test_supervision import workers


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two NVIDIA GPUs, one passed through to a virtual machine, an audio function, and another vendor's display."""
    functions = {
        "0000:41:00.0": ("0x10de", "0x030200", "nvidia"),
        "0000:42:00.0": ("0x10de", "0x030000", None),
        "0000:42:00.1": ("0x10de", "0x040300", None),
        "0000:43:00.0": ("0x10de", "0x030200", "vfio-pci"),
        "0000:00:02.0": ("0x8086", "0x030000", None),
    }
    for name, (vendor, kind, driver) in functions.items():
        function = tmp_path / "bus" / "pci" / "devices" / name
        function.mkdir(parents=True)
        (function / "vendor").write_text(f"{vendor}\n")
        (function / "class").write_text(f"{kind}\n")
        if driver is not None:
            (tmp_path / "bus" / "pci" / "drivers" / driver).mkdir(parents=True)
            (function / "driver").symlink_to(tmp_path / "bus" / "pci" / "drivers" / driver)
            (tmp_path / "bus" / "pci" / "drivers" / driver / name).symlink_to(function)
            (tmp_path / "bus" / "pci" / "drivers" / driver / "bind").touch()
    return tmp_path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """A machine without NVML in its library directories, and the environment of a process that finds none."""
    monkeypatch.setattr(detection, "_PLACES", ())
    monkeypatch.setattr(detection, "_CACHE", tmp_path / "ld.so.cache")
    return {"LD_LIBRARY_PATH": str(tmp_path / "driver")}


def test_only_nvidia_display_functions_of_this_node_are_gpus(sysfs: Path) -> None:
    assert detection.gpus_on_bus(sysfs) == 2


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ('RmMsg: ""\nExcludedGpus: ""\n', {"0000:41:00.0"}),
        ('RmMsg: ""\nExcludedGpus: "GPU-1"\n', set()),
        ('GpuBlacklist: "GPU-1"\n', set()),
        (None, {"0000:41:00.0"}),
    ],
)
def test_gpus_of_the_driver_are_those_bound_to_it(
    sysfs: Path, tmp_path: Path, parameters: str | None, expected: set[str]
) -> None:
    """Without those that NVML need not list: on other drivers, or excluded by an operator."""
    if parameters is not None:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "params").write_text(parameters)
    assert {str(pci) for pci in detection.gpus_of_driver(sysfs, proc=tmp_path)} == expected


def test_parameters_that_cannot_be_read_exclude_no_gpu(sysfs: Path, tmp_path: Path) -> None:
    (tmp_path / "driver" / "nvidia" / "params").mkdir(parents=True)
    assert {str(pci) for pci in detection.gpus_of_driver(sysfs, proc=tmp_path)} == {"0000:41:00.0"}


def test_machine_without_pci_bus_has_no_gpus(tmp_path: Path) -> None:
    assert detection.gpus_on_bus(tmp_path) == 0


def test_function_that_vanishes_during_the_check_is_not_a_gpu(sysfs: Path) -> None:
    (sysfs / "bus" / "pci" / "devices" / "0000:41:00.0" / "class").unlink()

    assert detection.gpus_on_bus(sysfs) == 1


def test_library_is_found_by_the_environment(bare: dict[str, str], nvml_library: Path) -> None:
    assert not detection.library_found(bare)
    assert detection.library_found({"LD_LIBRARY_PATH": f"{bare['LD_LIBRARY_PATH']}:{nvml_library}"})


def test_library_is_found_in_the_loaders_cache(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libc.so.6\0libnvidia-ml.so.1\0")

    assert detection.library_found(bare)


def test_dangling_library_link_is_not_a_library(bare: dict[str, str], tmp_path: Path) -> None:
    place = Path(bare["LD_LIBRARY_PATH"])
    place.mkdir()
    (place / detection.LIBRARY).symlink_to(tmp_path / "not-installed")

    assert not detection.library_found(bare)


async def test_cpu_node_is_idle_without_a_process(bare: dict[str, str], start: Start) -> None:
    env = start(env=bare)

    status = await env.status(ComponentState.IDLE)

    assert "libnvidia-ml.so.1" in status.message
    assert workers() == []


async def test_library_is_picked_up_when_it_appears(
    bare: dict[str, str], start: Start, nvml_library: Path, tmp_path: Path
) -> None:
    env = start(env=bare)
    await env.status(ComponentState.IDLE)

    (tmp_path / "driver").symlink_to(nvml_library)

    await env.status(ComponentState.READY)


async def test_gpus_on_bus_without_library_degrade_the_component(
    bare: dict[str, str], sysfs: Path, start: Start
) -> None:
    env = start(env=bare, sysfs=sysfs)

    status = await env.status(ComponentState.DEGRADED)

    assert "2 NVIDIA GPUs on its PCI bus" in status.message
    assert "load the driver" in status.hint


async def test_gpus_on_bus_without_driver_degrade_the_component(fake: FakeNvml, sysfs: Path, start: Start) -> None:
    fake.driver(Driver.ABSENT)
    env = start(sysfs=sysfs)

    status = await env.status(ComponentState.DEGRADED)
    fake.driver(Driver.LOADED)
    await env.status(ComponentState.READY)

    assert "no NVIDIA driver" in status.message
    assert "2 NVIDIA GPUs on its PCI bus" in status.message
