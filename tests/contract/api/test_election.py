"""Leader election: one leader at a time, each with a higher epoch than any before."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from kubemend.common.kube import client, errors
from kubemend.controller.leader.election import Election, LostError, Term, Timing
from kubemend.controller.leader.lease import EPOCH
from tests.contract.api import objects
from tests.control_plane import Tenant

SECONDS = 60.0
NAME = "kubemend-controller"
FAST = Timing(lease=4.0, renew=3.0, retry=1.0)
PATIENT = Timing(lease=40.0, renew=30.0, retry=1.0)


class Replica:
    """A replica that campaigns. ``terms`` are those that it has led; the last one while ``leads``."""

    def __init__(self, api: client.KubeClient, namespace: str, identity: str, *, timing: Timing = PATIENT) -> None:
        self.terms: list[Term] = []
        self.leads = False
        self._news = asyncio.Event()
        self.election = Election(
            api=api,
            namespace=namespace,
            name=NAME,
            identity=identity,
            lead=self._lead,
            report=lambda _: self._news.set(),
            timing=timing,
        )
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def campaigning(self) -> AsyncIterator["Replica"]:
        self._task = asyncio.create_task(self.election.run())
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    async def _lead(self, term: Term) -> None:
        self.terms.append(term)
        self.leads = True
        self._news.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.leads = False
            self._news.set()


async def risen(term: Term, *, above: int) -> int:
    async with asyncio.timeout(SECONDS):
        return await term.risen(above=above)


def path(namespace: str) -> str:
    return f"{objects.leases(namespace)}/{NAME}"


async def edit(api: client.KubeClient, namespace: str, **spec: object) -> None:
    await api.patch(path(namespace), {"spec": spec}, content_type=client.Patch.MERGE)


async def test_one_leads_and_the_next_has_a_higher_epoch(api: client.KubeClient, namespace: str) -> None:
    first, second = Replica(api, namespace, "a"), Replica(api, namespace, "b")
    async with first.campaigning():
        await first.until(lambda: first.leads)
        async with second.campaigning():
            await second.until(lambda: second.election.holder == "a")
            assert not second.leads
            lease = await api.get(path(namespace))
            assert lease["spec"]["holderIdentity"] == "a"
            assert lease["metadata"]["annotations"][EPOCH] == "1"
            await first.stop()
            assert not first.leads
            await second.until(lambda: second.leads)  # at once: the Lease was released
            assert (first.terms[0].epoch, second.terms[0].epoch) == (1, 2)
            lease = await api.get(path(namespace))
            assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 1)


async def test_a_lease_that_is_not_renewed_is_taken_over(api: client.KubeClient, namespace: str) -> None:
    held = {"holderIdentity": "crashed", "leaseDurationSeconds": 4, "renewTime": "2026-01-31T08:00:00.000000Z"}
    metadata = {"name": NAME, "annotations": {EPOCH: "7"}}
    await api.create(objects.leases(namespace), {"metadata": metadata, "spec": held})
    replica = Replica(api, namespace, "a", timing=FAST)
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        assert replica.terms[0].epoch == 8


async def test_leader_that_sees_another_holder_stops_at_once(api: client.KubeClient, namespace: str) -> None:
    replica = Replica(api, namespace, "a")
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        await edit(api, namespace, holderIdentity="thief")
        await replica.until(lambda: not replica.leads)
        assert replica.election.holder == "thief"
        with pytest.raises(LostError):
            await risen(replica.terms[0], above=5)


async def test_waiting_for_an_epoch_at_term_end_campaigns_again(tenant: Tenant, api: client.KubeClient) -> None:
    class Raising(Replica):
        """Its leading waits for a higher epoch, as the hub's does."""

        async def _lead(self, term: Term) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(super()._lead(term))
                group.create_task(term.risen(above=term.epoch + 5))

    replica = Raising(api, tenant.namespace, "a", timing=FAST)
    async with replica.campaigning():
        await replica.until(lambda: bool(replica.terms))
        await edit(api, tenant.namespace, holderIdentity="thief", leaseDurationSeconds=1)
        await replica.until(lambda: len(replica.terms) > 1)


async def test_leader_without_renewal_stops_before_others_may_begin(tenant: Tenant, api: client.KubeClient) -> None:
    replica = Replica(api, tenant.namespace, "a", timing=FAST)
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        await tenant.server.stop()
        await replica.until(lambda: not replica.leads)
        last = replica.terms[-1]
        assert asyncio.get_running_loop().time() >= last.renewed_at + FAST.renew
        await tenant.server.start()
        await replica.until(lambda: replica.leads)
        assert replica.terms[-1] is not last


async def test_a_deleted_lease_begins_another_term_with_a_higher_epoch(api: client.KubeClient, namespace: str) -> None:
    replica = Replica(api, namespace, "a")
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        await api.delete(path(namespace))
        await replica.until(lambda: len(replica.terms) == 2)
        assert [term.epoch for term in replica.terms] == [1, 2]
        assert (await api.get(path(namespace)))["metadata"]["annotations"][EPOCH] == "2"


async def test_leader_rises_above_an_epoch_that_agents_accepted(api: client.KubeClient, namespace: str) -> None:
    replica = Replica(api, namespace, "a")
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        (term,) = replica.terms
        for obeyed in (40, 41, 0, 2**63):
            term.raise_above(obeyed)
        assert await risen(term, above=1) == 42
        assert (await api.get(path(namespace)))["metadata"]["annotations"][EPOCH] == "42"
        term.raise_above(42)  # another leader had the same epoch
        assert await risen(term, above=42) == 43
        assert (await api.get(path(namespace)))["metadata"]["annotations"][EPOCH] == "43"
        assert replica.leads
        await replica.stop()
    successor = Replica(api, namespace, "b")
    async with successor.campaigning():
        await successor.until(lambda: successor.leads)
        assert successor.terms[0].epoch == 44


async def test_replica_without_the_lease_cannot_rise(api: client.KubeClient, namespace: str) -> None:
    replica = Replica(api, namespace, "a")
    async with replica.campaigning():
        await replica.until(lambda: replica.leads)
        (term,) = replica.terms
        await edit(api, namespace, holderIdentity="thief")
        term.raise_above(40)
        with pytest.raises(LostError):
            await risen(term, above=40)
        assert (await api.get(path(namespace)))["metadata"]["annotations"][EPOCH] == "1"


async def test_leader_error_ends_the_campaign_and_releases_the_lease(api: client.KubeClient, namespace: str) -> None:
    async def fail(_: Term) -> None:
        raise RuntimeError("a defect")

    election = Election(
        api=api, namespace=namespace, name=NAME, identity="a", lead=fail, report=lambda _: None, timing=FAST
    )
    with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
        async with asyncio.timeout(SECONDS):
            await election.run()
    assert caught.group_contains(RuntimeError, match="a defect")
    assert (await api.get(path(namespace)))["spec"]["holderIdentity"] == ""


async def test_of_many_campaigners_one_leads(api: client.KubeClient, namespace: str) -> None:
    replicas = [Replica(api, namespace, f"replica-{number}") for number in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.campaigning())
        for _ in range(len(replicas)):
            leader = await _next_leader(replicas)
            assert [replica for replica in replicas if replica.leads] == [leader]
            await leader.stop()
            replicas.remove(leader)
    with contextlib.suppress(errors.NotFoundError):
        assert (await api.get(path(namespace)))["metadata"]["annotations"][EPOCH] == "5"


async def _next_leader(replicas: list[Replica]) -> Replica:
    waits = [asyncio.create_task(replica.until(lambda replica=replica: replica.leads)) for replica in replicas]  # type: ignore[misc]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return next(replica for replica in replicas if replica.leads)
