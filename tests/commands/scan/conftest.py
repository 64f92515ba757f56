"""A machine to scan: GPUs by the fake NVML, a PCI bus as files, and a kernel log."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hack.fakenvml import control
from hack.kmsg import KmsgWriter
from tests.fakes.sysfs_tree import SysfsTree

PATIENCE = 120.0  # seconds; no test waits this long unless something is broken

DISK = {"vendor": "0x144d", "device": "0xa80a"}
GPU = {"vendor": "0x10de", "device": "0x2330"}


@dataclass
class Machine:
    """The paths of the machine that a scan checks."""

    root: Path
    nvml: control.FakeNvml
    bus: SysfsTree
    log: KmsgWriter

    def scan(
        self, *more: str, timeout: str = "120s", stdout: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        """Run the command as a user does; ``stdout`` as for subprocess."""
        flags = [f"--kernel-log={self.log.path}", f"--sysfs={self.bus.root}", f"--timeout={timeout}"]
        command = [sys.executable, "-m", "kubemend.agent.cli", "scan", *flags, *more]
        env = {**os.environ, **self.nvml.env()}
        return subprocess.run(
            command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
        )

    def plug_gpu(self, pci: str) -> None:
        """Put a GPU on the bus, without a driver."""
        self.bus.function(pci, pci_class="0x030200", ids=GPU, driver="")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with 8 healthy GPUs in NVML, a disk on its bus, and an empty kernel log."""
    bus = SysfsTree(tmp_path / "sys")
    bus.function("0000:01:00.0", pci_class="0x010802", ids=DISK, driver="nvme")
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
        yield Machine(root=tmp_path, nvml=fake, bus=bus, log=KmsgWriter(tmp_path / "kmsg"))
        fake.resume()
