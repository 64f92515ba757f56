"""What an examination looks at, as stand-ins: a runtime, an API server, a fake NVML."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.kube import client as kube
from hack.devnode.api import standin
from hack.fakenvml import control
from tests.fakes.cri_server import CriServer


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[CriServer]:
    """A runtime that does what containerd does."""
    async with CriServer(str(tmp_path / "cri.sock")) as running:
        yield running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[standin.StandIn]:
    """An API server."""
    async with standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as running:
        yield running


@pytest.fixture
async def api(server: standin.StandIn) -> AsyncIterator[kube.KubeClient]:
    """A client of it."""
    async with kube.connect(kubeconfig=server.kubeconfig) as connected:
        yield connected


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def fake(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[control.FakeNvml]:
    """A fake NVML with 8 healthy GPUs, which child processes load. Nothing hangs when the test is over."""
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
        for name, value in fake.env().items():
            monkeypatch.setenv(name, value)
        yield fake
        fake.resume()
