"""Who asks about a pod while others do gets the answer of one call that began after the question."""

import asyncio
from collections.abc import Mapping

import pytest

from agent.cri import errors
from agent.cri.client import CriClient
from agent.cri.sharing import Shared
from agent.model.workloads import PodUid
from tests import eventually
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import POD_UID, create

A, B = PodUid("a"), PodUid("b")


class Runtime:
    """Answers when it is let, and counts."""

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
        return {A: (number,), PodUid("of nobody"): (0,)}


async def test_who_asks_in_one_go_is_asked_for_in_one() -> None:
    runtime = Runtime()
    shared = Shared(runtime.ask)
    assert [*await asyncio.gather(shared.of(A), shared.of(B), shared.of(A))] == [(1,), (), (1,)]
    assert runtime.asked == [{A, B}]


async def test_an_answer_under_way_is_never_given_to_who_asks_later() -> None:
    runtime = Runtime()
    shared = Shared(runtime.ask)
    runtime.may_answer.clear()
    first = asyncio.create_task(shared.of(A))
    await eventually.true(lambda: bool(runtime.asked))
    later = [asyncio.create_task(shared.of(A)) for _ in range(3)]
    await asyncio.sleep(0)
    runtime.may_answer.set()
    assert await first == (1,)
    assert await asyncio.gather(*later) == [(2,)] * 3
    assert len(runtime.asked) == 2


async def test_what_the_call_raises_is_raised_by_all_and_the_next_one_is_asked_anew() -> None:
    runtime = Runtime()
    shared = Shared(runtime.ask)
    runtime.error = errors.RuntimeUnavailable("gone", where="/run/cri.sock")
    found = await asyncio.gather(shared.of(A), shared.of(B), return_exceptions=True)
    assert [*found] == [runtime.error] * 2
    runtime.error = None
    assert await shared.of(A) == (2,)


async def test_who_gives_up_takes_nobody_with_him() -> None:
    runtime = Runtime()
    shared = Shared(runtime.ask)
    runtime.may_answer.clear()
    impatient, patient = asyncio.create_task(shared.of(A)), asyncio.create_task(shared.of(A))
    await eventually.true(lambda: bool(runtime.asked))
    impatient.cancel()
    await asyncio.wait({impatient})
    runtime.may_answer.set()
    assert await patient == (1,)


async def test_the_client_lists_for_many_with_one_call_and_each_sees_its_own(server: CriServer, cri: CriClient) -> None:
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


async def test_a_failed_call_for_many_fails_for_each(server: CriServer, cri: CriClient) -> None:
    await server.stop()
    with pytest.raises(errors.RuntimeUnavailable):
        await cri.list_containers(pod_uid=POD_UID)


async def test_a_sandboxs_config_is_asked_for_once(server: CriServer, cri: CriClient) -> None:
    create(server)
    (sandbox,) = await cri.list_sandboxes(pod_uid=POD_UID)
    first, second = await cri.sandbox_config(sandbox.id), await cri.sandbox_config(sandbox.id)
    assert first == second is not None
    assert server.called().count("PodSandboxStatus") == 1
