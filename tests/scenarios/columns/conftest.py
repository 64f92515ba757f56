"""A node with an agent for each scenario."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from hack.devnode import node
from kubemend.agent.clients.cri.client import CriClient
from kubemend.common import grpcio
from kubemend.common.kube import client as kube
from kubemend.common.pb.runtime.v1 import api_pb2_grpc
from tests.scenarios import training
from tests.scenarios.columns.board import Board


@pytest.fixture
def agent_flags() -> Sequence[str]:
    """Further flags of the agent; a module may have its own."""
    return ()


@pytest.fixture
async def board(dev: node.DevNode, tmp_path: Path, agent_flags: Sequence[str]) -> AsyncIterator[Board]:
    """The node with an agent that is ready."""
    socket, state = str(dev.layout.containerd_socket), tmp_path / "state"
    async with (
        kube.connect(kubeconfig=dev.kubeconfig) as api,
        CriClient(socket) as cri,
        grpcio.unix_channel(socket) as channel,
        dev.agent(f"--state-dir={state}", *agent_flags) as agent,
    ):
        await training.until_ready(agent)
        yield Board(dev, api, cri, api_pb2_grpc.RuntimeServiceStub(channel), state)
