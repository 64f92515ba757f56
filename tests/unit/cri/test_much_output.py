"""The output of hooks costs this process a bounded amount of memory, however many print at once."""

import asyncio

import pytest

from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.client import CriClient
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import create, start

LITTLE, MUCH = ("little",), ("much",)
MIB = 1 << 20


async def test_small_output_is_read_and_large_output_is_not(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    start(server, container_id)
    server.runtime.exec_results[LITTLE] = api_pb2.ExecSyncResponse(stdout=b"x" * 200_000, exit_code=3)
    server.runtime.exec_results[MUCH] = api_pb2.ExecSyncResponse(stdout=b"x" * (15 * MIB))
    assert len((await cri.exec_sync(container_id, LITTLE, timeout=60)).stdout) == 200_000
    with pytest.raises(errors.AnswerTooLong, match="larger than max"):
        await cri.exec_sync(container_id, MUCH, timeout=60)


async def test_concurrent_large_outputs_are_not_read(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    start(server, container_id)
    server.runtime.exec_results[MUCH] = api_pb2.ExecSyncResponse(stdout=b"x" * (15 * MIB))
    asked = [cri.exec_sync(container_id, MUCH, timeout=60) for _ in range(8)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, errors.AnswerTooLong) for each in results), results
