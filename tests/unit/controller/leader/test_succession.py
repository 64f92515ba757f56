"""A leader whose process is dead is succeeded before its Lease expires; a living one is not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from kubemend.common.kube import client
from kubemend.controller.leader import election
from kubemend.controller.leader.election import Election, Term, Timing
from kubemend.controller.leader.lease import EPOCH, HUB
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected

NEVER = Timing(lease=3 * 3600.0, renew=2 * 3600.0, retry=1.0)
"""Longer than any test: the Lease never expires."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A client, and the namespace of the Lease."""

    api: client.KubeClient
    namespace: str
    leases: str


@pytest.fixture
async def cluster(tenant: Tenant) -> AsyncIterator[Cluster]:
    async with connected(tenant) as api:
        yield Cluster(api, tenant.namespace, tenant.of("leases", group="coordination.k8s.io"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_PROBE_SECONDS", 0.001)


class Campaign:
    """A replica that campaigns; ``term`` is its term."""

    def __init__(self, cluster: Cluster, *, identity: str = "pod-b_uid-b_2", **about: str) -> None:
        self.term: asyncio.Future[Term] = asyncio.get_running_loop().create_future()
        self.election = Election(
            api=cluster.api,
            namespace=cluster.namespace,
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


async def held_by(cluster: Cluster, holder: str, *, hub: str = "") -> None:
    annotations = {EPOCH: "7"} | ({HUB: hub} if hub else {})
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-31T08:00:00.000000Z"}
    await cluster.api.create(cluster.leases, {"metadata": {"name": "l", "annotations": annotations}, "spec": spec})


async def tried(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], bool], *, times: int = 2
) -> tuple[asyncio.Event, list[str]]:
    """Have probes answer like this; the event is set after this many of them."""
    enough, asked = asyncio.Event(), list[str]()

    async def refuses(address: str) -> bool:
        asked.append(address)
        if len(asked) >= times:
            enough.set()
        return answer(address)

    monkeypatch.setattr(election, "refuses_connections", refuses)
    return enough, asked


@pytest.fixture
def closed() -> str:
    """Return an address at which nothing listens or will listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


async def test_restarted_container_leads_at_once_with_next_epoch(cluster: Cluster) -> None:
    await held_by(cluster, "pod-a_uid-a_1")
    async with Campaign(cluster, identity="pod-a_uid-a_2", predecessors="pod-a_uid-a_").running() as replica:
        assert (await replica.leads()).epoch == 8


@pytest.mark.parametrize("holder", ["pod-b_uid-b_1", "pod-a_uid-b_1", "pod-a_uid-aa_1", "pod-a"])
async def test_process_of_other_pod_does_not_count_as_dead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    await held_by(cluster, holder)
    enough, _ = await tried(monkeypatch, lambda _: False)
    async with Campaign(cluster, identity="pod-a_uid-a_2", predecessors="pod-a_uid-a_").running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading


async def test_leader_with_refusing_hub_and_no_writes_is_succeeded(cluster: Cluster, closed: str) -> None:
    await held_by(cluster, "pod-a_uid-a_1", hub=f"pod-a_uid-a_1@{closed}")
    async with Campaign(cluster, hub="[10.0.0.2]:9465").running() as replica:
        assert (await replica.leads()).epoch == 8
    annotations = (await cluster.api.get(f"{cluster.leases}/l"))["metadata"]["annotations"]
    assert annotations == {EPOCH: "8", HUB: "pod-b_uid-b_2@[10.0.0.2]:9465"}


async def test_leader_that_writes_lease_is_not_dead(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await held_by(cluster, "pod-a_uid-a_1", hub="pod-a_uid-a_1@10.0.0.1:9465")
    enough, asked = asyncio.Event(), 0

    async def refuses(_: str) -> bool:
        nonlocal asked
        asked += 1
        if asked % (election._REFUSALS - 1) == 0:
            spec = {"renewTime": f"2026-01-31T08:00:00.{asked:06}Z"}
            await cluster.api.patch(f"{cluster.leases}/l", {"spec": spec}, content_type=client.Patch.MERGE)
        if asked >= 5 * election._REFUSALS:
            enough.set()
        return True

    monkeypatch.setattr(election, "refuses_connections", refuses)
    async with Campaign(cluster).running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading


async def test_only_consecutive_refusals_count(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await held_by(cluster, "pod-a_uid-a_1", hub="pod-a_uid-a_1@10.0.0.1:9465")
    answers = iter(([True] * (election._REFUSALS - 1) + [False]) * 1000)
    enough, asked = await tried(monkeypatch, lambda _: next(answers), times=2 * election._REFUSALS)
    async with Campaign(cluster).running() as replica:
        async with asyncio.timeout(60):
            await enough.wait()
        assert not replica.election.leading
    assert set(asked) == {"10.0.0.1:9465"}


@pytest.mark.parametrize("published", ["", "pod-z_1@10.0.0.1:9465", "10.0.0.1:9465"])
async def test_unpublished_address_is_not_probed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, published: str
) -> None:
    await held_by(cluster, "pod-a_uid-a_1", hub=published)
    enough, asked = await tried(monkeypatch, lambda _: False)
    async with Campaign(cluster).running():
        async with asyncio.timeout(60):
            await enough.wait()
    assert set(asked) == {""}


async def test_only_a_refusal_proves_that_nothing_listens(closed: str) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await election.refuses_connections(f"127.0.0.1:{port}")
        assert not await election.refuses_connections(f"[127.0.0.1]:{port}")
    assert await election.refuses_connections(closed)


@pytest.mark.parametrize("address", ["", ":", "a", "127.0.0.1:", ":1", "127.0.0.1:x", "a..b:1", "127.0.0.1:99999"])
async def test_invalid_address_refuses_nothing(address: str) -> None:
    assert not await election.refuses_connections(address)
