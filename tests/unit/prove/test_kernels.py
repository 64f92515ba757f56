"""The PTX is accepted by NVIDIA's assembler: a toolkit's, or that of the package nvidia-cuda-nvcc-cu12."""

import importlib.metadata
import shutil
import subprocess
from pathlib import Path

import pytest

from kubemend.agent.prove import kernels

ALL = (
    kernels.TO_HALVES,
    kernels.TENSOR_PRODUCT,
    kernels.FILL,
    kernels.CHECK,
    kernels.COMPARE,
    kernels.INTEGER_PRODUCT,
    kernels.FLOAT_PRODUCT,
)


def ptxas() -> str:
    """Return the assembler's path. Raises PackageNotFoundError where there is none."""
    installed = importlib.metadata.distribution
    return shutil.which("ptxas") or str(installed("nvidia-cuda-nvcc-cu12").locate_file("nvidia/cuda_nvcc/bin/ptxas"))


@pytest.mark.parametrize("target", ["sm_70", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_ptxas_assembles_the_kernels(target: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.ptx").write_text(kernels.PTX)
    argv = [ptxas(), f"-arch={target}", "-Werror", "-v", "-o", str(tmp_path / "kernels.cubin"), "kernels.ptx"]

    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert all(f"'{name}'" in done.stderr for name in ALL), done.stderr


def test_module_has_each_kernel_once_and_runs_on_volta_and_later() -> None:
    assert [kernels.PTX.count(f".visible .entry {name}(") for name in ALL] == [1] * len(ALL)
    assert kernels.PTX.startswith(".version 6.3\n.target sm_70\n")
