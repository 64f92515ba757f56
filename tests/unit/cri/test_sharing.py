"""Concurrent queries by pod get the answer of one call that began after the query."""

import asyncio
from collections.abc import Mapping

import pytest

from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.listings import BatchedQuery
from kubemend.agent.model.workloads import PodUid
from tests import eventually
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import POD_UID, create

A, B = PodUid("a"), PodUid("b")


class Runtime:
    """Answers when permitted, and counts."""

    def __init__(self) -> None:
        self.asked: list[frozenset[PodUid]] = []
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, pods: frozenset[PodUid]) -> Mapping[PodUid, tuple[int, ...]]:
        self.asked.append(pods)
        number = len(self.asked)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {A: (number,), PodUid("of no caller"): (0,)}


async def test_concurrent_queries_share_one_call() -> None:
    runtime = Runtime()
    shared = BatchedQuery(runtime.ask)
    assert [*await asyncio.gather(shared.of(A), shared.of(B), shared.of(A))] == [(1,), (), (1,)]
    assert runtime.asked == [{A, B}]


async def test_running_call_does_not_answer_later_queries() -> None:
    runtime = Runtime()
    shared = BatchedQuery(runtime.ask)
    runtime.may_answer.clear()
    first = asyncio.create_task(shared.of(A))
    await eventually.true(lambda: bool(runtime.asked))
    later = [asyncio.create_task(shared.of(A)) for _ in range(3)]
    await asyncio.sleep(0)
    runtime.may_answer.set()
    assert await first == (1,)
    assert await asyncio.gather(*later) == [(2,)] * 3
    assert len(runtime.asked) == 2


async def test_call_error_reaches_all_and_next_query_calls_again() -> None:
    runtime = Runtime()
    shared = BatchedQuery(runtime.ask)
    runtime.error = errors.RuntimeUnavailable("gone", where="/run/cri.sock")
    found = await asyncio.gather(shared.of(A), shared.of(B), return_exceptions=True)
    assert [*found] == [runtime.error] * 2
    runtime.error = None
    assert await shared.of(A) == (2,)


async def test_cancelled_query_does_not_cancel_others() -> None:
    runtime = Runtime()
    shared = BatchedQuery(runtime.ask)
    runtime.may_answer.clear()
    impatient, patient = asyncio.create_task(shared.of(A)), asyncio.create_task(shared.of(A))
    await eventually.true(lambda: bool(runtime.asked))
    impatient.cancel()
    await asyncio.wait({impatient})
    runtime.may_answer.set()
    assert await patient == (1,)


async def test_client_batches_listings_by_pod(server: CriServer, cri: CriClient) -> None:
    trainer, logger = create(server), create(server, "logger")
    mine, one, foreign, sandboxes, more = await asyncio.gather(
        cri.list_containers(pod_uid=POD_UID),
        cri.list_containers(pod_uid=POD_UID, name="logger"),
        cri.list_containers(pod_uid=PodUid("another")),
        cri.list_sandboxes(pod_uid=POD_UID),
        cri.list_sandboxes(pod_uid=PodUid("another")),
    )
    assert [view.id for view in mine] == [trainer, logger]
    assert [view.id for view in one] == [logger]
    assert (foreign, more) == ((), ())
    assert len(sandboxes) == 1
    assert [server.called().count(call) for call in ("ListContainers", "ListPodSandbox")] == [1, 1]


async def test_failed_batch_fails_each_query(server: CriServer, cri: CriClient) -> None:
    await server.stop()
    with pytest.raises(errors.RuntimeUnavailable):
        await cri.list_containers(pod_uid=POD_UID)


async def test_sandbox_config_is_read_once(server: CriServer, cri: CriClient) -> None:
    create(server)
    (sandbox,) = await cri.list_sandboxes(pod_uid=POD_UID)
    first, second = await cri.sandbox_config(sandbox.id), await cri.sandbox_config(sandbox.id)
    assert first == second
    assert server.called().count("PodSandboxStatus") == 1
