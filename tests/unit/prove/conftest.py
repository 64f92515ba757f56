"""A machine to prove: GPUs by the fake CUDA driver and the fake NVML."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.fakecuda.control import FakeCuda
from hack.fakecuda.control import build as build_cuda
from hack.fakenvml.control import FakeNvml
from hack.fakenvml.control import build as build_nvml

PATIENCE = 120.0  # seconds; no test waits this long unless something is broken
GPUS = 2


@dataclass
class Machine:
    """The state of the GPUs, and the environment in which a process sees them."""

    nvml: FakeNvml
    cuda: FakeCuda
    mps_pipes: Path

    def env(self) -> dict[str, str]:
        """Return the environment of a process on the machine."""
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(self.mps_pipes)}
        return {**os.environ, **self.nvml.env(), **self.cuda.env(), **pipes}

    def run(self, *command: str, patience: float = PATIENCE, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module on the machine."""
        env = {**self.env(), **more}
        argv = [sys.executable, "-m", *command]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=patience, check=False)

    def prove(self, *flags: str, timeout: str = "120s") -> subprocess.CompletedProcess[str]:
        """Run the command as a user does."""
        return self.run("kubemend.agent.cli", "prove", f"--timeout={timeout}", *flags)

    def proof(self, *flags: str, timeout: str = "120s") -> dict[str, Any]:
        """Run the command and return its report."""
        done = self.prove("--json", *flags, timeout=timeout)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return {**report, "exit_code": done.returncode}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fakes of libcuda.so.1 and libnvidia-ml.so.1."""
    directory = tmp_path_factory.mktemp("libraries")
    build_nvml(directory)
    return build_cuda(directory).parent


@pytest.fixture
def machine(libraries: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with two idle GPUs that work."""
    with _machine(libraries, tmp_path, gpus=GPUS) as machine:
        yield machine


@pytest.fixture
def large_machine(libraries: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with eight idle GPUs that work."""
    with _machine(libraries, tmp_path, gpus=8) as machine:
        yield machine


@contextlib.contextmanager
def _machine(libraries: Path, tmp_path: Path, *, gpus: int) -> Iterator[Machine]:
    with (
        FakeNvml(tmp_path / "nvml", libraries, gpus=gpus) as nvml,
        FakeCuda(tmp_path / "cuda", libraries, gpus=gpus) as cuda,
    ):
        yield Machine(nvml=nvml, cuda=cuda, mps_pipes=tmp_path / "mps")
        cuda.resume()
        nvml.resume()
