"""A stand-in API server with the definition of JobSets, and one replica that runs them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode.api import standin
from tests.unit.jobsets import rig


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[standin.StandIn]:
    async with standin.StandIn(kubeconfig=tmp_path / "kubeconfig", bookmark_period=0.5) as server:
        yield server


@pytest.fixture
async def bench(server: standin.StandIn) -> AsyncIterator[rig.Bench]:
    async with rig.Client(server.kubeconfig) as api:
        await rig.install(api)
        yield rig.Bench(server, api)


@pytest.fixture
async def leader(server: standin.StandIn) -> AsyncIterator[rig.Leader]:
    async with rig.Client(server.kubeconfig) as api:
        yield rig.Leader(api)
