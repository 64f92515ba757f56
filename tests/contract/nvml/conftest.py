"""Run one suite on the fake NVML and, where there is a GPU, on the real one: this validates the fake."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.fakenvml import control
from tests.contract.nvml import real


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def nvml_env(request: pytest.FixtureRequest, nvml_library: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which a process finds the NVML under test."""
    if request.param == "fake":
        with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
            yield {**os.environ, **fake.env()}
    elif (reason := real.missing()) is not None:
        pytest.skip(reason)
    else:
        yield dict(os.environ)
