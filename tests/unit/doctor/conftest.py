"""The environment of an examination: a stand-in for the runtime, a real API server, a fake NVML."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hack.fakenvml import control
from kubemend.common.kube import client as kube
from tests.control_plane import Tenant
from tests.fakes.cri_server import CriServer


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[CriServer]:
    """A runtime with the features of containerd."""
    async with CriServer(str(tmp_path / "cri.sock")) as running:
        yield running


@pytest.fixture
async def api(tenant: Tenant) -> AsyncIterator[kube.KubeClient]:
    """A client of a real API server."""
    async with tenant.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def fake(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[control.FakeNvml]:
    """A fake NVML with 8 healthy GPUs, which child processes load. No call hangs after the test."""
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
        for name, value in fake.env().items():
            monkeypatch.setenv(name, value)
        yield fake
        fake.resume()
