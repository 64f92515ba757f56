"""A leader whose process is gone is followed without waiting until its Lease has run out; one that is there is not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from common.kube import client, paths
from controller.leader import election, holders
from controller.leader.election import Election, Term, Timing
from controller.leader.lease import EPOCH, HUB
from tests.unit.reporters.running import connected

LEASES = paths.collection("leases", namespace="default", group="coordination.k8s.io")
NEVER = Timing(lease=3 * 3600.0, renew=2 * 3600.0, retry=1.0)
"""Nobody lives to see such a Lease run out."""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[client.KubeClient]:
    async with connected(tmp_path) as (_, api):
        yield api


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_PROBE_SECONDS", 0.001)


class Campaign:
    """A replica that campaigns; ``term`` is the one that it leads."""

    def __init__(self, api: client.KubeClient, *, identity: str = "pod-b_uid-b_2", **about: str) -> None:
        self.term: asyncio.Future[Term] = asyncio.get_running_loop().create_future()
        self.election = Election(
            api=api,
            namespace="default",
            name="l",
            identity=identity,
            lead=self._lead,
            report=lambda _: None,
            timing=NEVER,
            **about,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Campaign"]:
        task = asyncio.create_task(self.election.run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def leads(self) -> Term:
        async with asyncio.timeout(60):
            return await self.term

    async def _lead(self, term: Term) -> None:
        self.term.set_result(term)
        await asyncio.Event().wait()


async def held_by(api: client.KubeClient, holder: str, *, hub: str = "") -> None:
    annotations = {EPOCH: "7"} | ({HUB: hub} if hub else {})
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-31T08:00:00.000000Z"}
    await api.create(LEASES, {"metadata": {"name": "l", "annotations": annotations}, "spec": spec})


async def tried(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], bool], *, times: int = 2
) -> tuple[asyncio.Event, list[str]]:
    """Have probes answered so; the event is set when there have been so many of them."""
    enough, asked = asyncio.Event(), list[str]()

    async def refuses(address: str) -> bool:
        asked.append(address)
        if len(asked) >= times:
            enough.set()
        return answer(address)

    monkeypatch.setattr(holders, "refuses", refuses)
    return enough, asked


@pytest.fixture
def closed() -> str:
    """An address at which nothing listens, and nothing else comes to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


async def test_a_container_that_was_restarted_leads_at_once_with_the_next_epoch(api: client.KubeClient) -> None:
    await held_by(api, "pod-a_uid-a_1")
    async with Campaign(api, identity="pod-a_uid-a_2", predecessors="pod-a_uid-a_").running() as replica:
        assert (await replica.leads()).epoch == 8


@pytest.mark.parametrize("holder", ["pod-b_uid-b_1", "pod-a_uid-b_1", "pod-a_uid-aa_1", "pod-a"])
async def test_the_process_of_another_pod_is_not_taken_for_dead(
    api: client.KubeClient, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    await held_by(api, holder)
    enough, _ = await tried(monkeypatch, lambda _: False)
    async with Campaign(api, identity="pod-a_uid-a_2", predecessors="pod-a_uid-a_").running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading


async def test_a_leader_whose_hub_refuses_and_who_writes_nothing_is_followed(
    api: client.KubeClient, closed: str
) -> None:
    await held_by(api, "pod-a_uid-a_1", hub=f"pod-a_uid-a_1@{closed}")
    async with Campaign(api, hub="[10.0.0.2]:9465").running() as replica:
        assert (await replica.leads()).epoch == 8
    annotations = (await api.get(f"{LEASES}/l"))["metadata"]["annotations"]
    assert annotations == {EPOCH: "8", HUB: "pod-b_uid-b_2@[10.0.0.2]:9465"}


async def test_a_leader_who_writes_the_lease_is_not_dead_though_its_hub_refuses(
    api: client.KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held_by(api, "pod-a_uid-a_1", hub="pod-a_uid-a_1@10.0.0.1:9465")
    enough, asked = asyncio.Event(), 0

    async def refuses(_: str) -> bool:
        nonlocal asked
        asked += 1
        if asked % (election._REFUSALS - 1) == 0:
            spec = {"renewTime": f"2026-01-31T08:00:00.{asked:06}Z"}
            await api.patch(f"{LEASES}/l", {"spec": spec}, content_type=client.Patch.MERGE)
        if asked >= 5 * election._REFUSALS:
            enough.set()
        return True

    monkeypatch.setattr(holders, "refuses", refuses)
    async with Campaign(api).running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading


async def test_refusals_count_in_a_row_alone(api: client.KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await held_by(api, "pod-a_uid-a_1", hub="pod-a_uid-a_1@10.0.0.1:9465")
    answers = iter(([True] * (election._REFUSALS - 1) + [False]) * 1000)
    enough, asked = await tried(monkeypatch, lambda _: next(answers), times=2 * election._REFUSALS)
    async with Campaign(api).running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading
    assert set(asked) == {"10.0.0.1:9465"}


@pytest.mark.parametrize("told", ["", "pod-z_1@10.0.0.1:9465", "10.0.0.1:9465"])
async def test_an_address_that_the_holder_has_not_told_is_not_asked(
    api: client.KubeClient, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    await held_by(api, "pod-a_uid-a_1", hub=told)
    enough, asked = await tried(monkeypatch, lambda _: False)
    async with Campaign(api).running():
        async with asyncio.timeout(60):
            await enough.wait()
    assert set(asked) == {""}


async def test_only_a_refusal_says_that_nothing_listens(closed: str) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await holders.refuses(f"127.0.0.1:{port}")
        assert not await holders.refuses(f"[127.0.0.1]:{port}")
    assert await holders.refuses(closed)


@pytest.mark.parametrize("address", ["", ":", "a", "127.0.0.1:", ":1", "127.0.0.1:x", "a..b:1", "127.0.0.1:99999"])
async def test_what_is_no_address_refuses_nothing(address: str) -> None:
    assert not await holders.refuses(address)
