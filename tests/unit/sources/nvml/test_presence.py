"""Whether a node has anything for NVML to show, by its files alone; and what the source makes of it."""

from pathlib import Path

import pytest

from agent.sources.nvml import presence
from common.parts import PartState
from hack.fakenvml.control import FakeNvml
from hack.fakenvml.layout import Driver
from tests.unit.sources.nvml.conftest import Start
from tests.unit.sources.nvml.test_supervision import workers


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two NVIDIA GPUs, one more given to a virtual machine, an audio function, and another vendor's display."""
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
    return tmp_path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """A machine whose own places hold no NVML, and the environment of a process that finds none."""
    monkeypatch.setattr(presence, "_PLACES", ())
    monkeypatch.setattr(presence, "_CACHE", tmp_path / "ld.so.cache")
    return {"LD_LIBRARY_PATH": str(tmp_path / "driver")}


def test_only_nvidia_display_functions_of_this_node_are_gpus(sysfs: Path) -> None:
    assert presence.gpus_on_bus(sysfs) == 2


def test_a_machine_without_a_pci_bus_has_no_gpus(tmp_path: Path) -> None:
    assert presence.gpus_on_bus(tmp_path) == 0


def test_a_function_that_vanishes_while_it_is_looked_at_is_no_gpu(sysfs: Path) -> None:
    (sysfs / "bus" / "pci" / "devices" / "0000:41:00.0" / "class").unlink()

    assert presence.gpus_on_bus(sysfs) == 1


def test_a_library_is_found_by_the_environment(bare: dict[str, str], nvml_library: Path) -> None:
    assert not presence.library_found(bare)
    assert presence.library_found({"LD_LIBRARY_PATH": f"{bare['LD_LIBRARY_PATH']}:{nvml_library}"})


def test_a_library_is_found_in_the_loaders_cache(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libc.so.6\0libnvidia-ml.so.1\0")

    assert presence.library_found(bare)


def test_a_link_to_a_driver_that_is_not_installed_is_no_library(bare: dict[str, str], tmp_path: Path) -> None:
    place = Path(bare["LD_LIBRARY_PATH"])
    place.mkdir()
    (place / presence.LIBRARY).symlink_to(tmp_path / "not-installed")

    assert not presence.library_found(bare)


async def test_on_a_cpu_node_the_part_is_idle_and_no_process_is_started(bare: dict[str, str], start: Start) -> None:
    bench = start(env=bare)

    status = await bench.status(PartState.IDLE)

    assert "libnvidia-ml.so.1" in status.message
    assert workers() == []


async def test_the_library_is_picked_up_when_it_comes(
    bare: dict[str, str], start: Start, nvml_library: Path, tmp_path: Path
) -> None:
    bench = start(env=bare)
    await bench.status(PartState.IDLE)

    (tmp_path / "driver").symlink_to(nvml_library)

    await bench.status(PartState.READY)


async def test_gpus_on_the_bus_without_a_library_degrade_the_part(
    bare: dict[str, str], sysfs: Path, start: Start
) -> None:
    bench = start(env=bare, sysfs=sysfs)

    status = await bench.status(PartState.DEGRADED)

    assert "2 NVIDIA GPUs on its PCI bus" in status.message
    assert "load the driver" in status.mend


async def test_gpus_on_the_bus_without_a_driver_degrade_the_part(fake: FakeNvml, sysfs: Path, start: Start) -> None:
    fake.driver(Driver.ABSENT)
    bench = start(sysfs=sysfs)

    status = await bench.status(PartState.DEGRADED)
    fake.driver(Driver.LOADED)
    await bench.status(PartState.READY)

    assert "no NVIDIA driver" in status.message
    assert "2 NVIDIA GPUs on its PCI bus" in status.message
