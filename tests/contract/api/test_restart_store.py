"""The store of Restart objects against an API server: what it writes, what it does not, and with which leader."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names
from kubemend.controller.restarts.history import Keeping
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import Begun, RestartChange, RestartChangeKind, RestartStore
from tests import background
from tests.contract.api import restarts
from tests.control_plane import Tenant

SECONDS = 60.0


class Store:
    """A store that runs."""

    def __init__(self, api: client.KubeClient, *, keeping: Keeping | None = None) -> None:
        self.changes: list[RestartChange] = []
        self._news = asyncio.Event()
        self.store = RestartStore(
            api=api,
            report=lambda _: None,
            is_alive=lambda _: True,
            keeping=keeping,
            backoff=lambda: aio.Backoff(first=0.05, limit=0.2),
        )
        self.store.subscribe(self._record)

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    def shown(self, restart_id: str) -> Restart | None:
        return self.store.restarts().get(restart_id)

    def request(self, namespace: str) -> Restart:
        """Return the only request of a namespace."""
        (found,) = [each for each in self.store.requests() if each.namespace == namespace]
        return found

    def _record(self, change: RestartChange) -> None:
        self.changes.append(change)
        self._news.set()


@contextlib.asynccontextmanager
async def running(api: client.KubeClient, *, keeping: Keeping | None = None) -> AsyncIterator[Store]:
    found = Store(api, keeping=keeping)
    task = asyncio.create_task(found.store.run())
    try:
        async with asyncio.timeout(SECONDS):
            await found.store.wait_synced()
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(autouse=True)
async def resource(api: client.KubeClient) -> None:
    """The definition is installed."""
    await restarts.install(api)


@pytest.fixture
async def store(api: client.KubeClient) -> AsyncIterator[Store]:
    async with running(api) as found:
        yield found


async def read(api: client.KubeClient, restart_id: str) -> dict[str, Any]:
    return await api.get(names.path(*restart_id.split("/")))


async def test_a_round_is_one_creation_and_one_status(api: client.KubeClient, namespace: str, store: Store) -> None:
    new = restarts.new_round(namespace)
    begun = await store.store.create(new, timeout=SECONDS)
    assert begun.durable
    created = await read(api, begun.ref.id)
    assert "status" not in created
    assert created["spec"] == {"gang": {"kind": "Job", "name": "train"}}
    assert created["metadata"]["labels"] == {names.GANG_KIND: "Job", names.GANG_NAME: "train"}
    await store.until(lambda: store.shown(begun.ref.id) is not None)
    shown = store.shown(begun.ref.id)
    assert shown is not None
    assert (shown.attempt, shown.epoch, shown.phase, shown.ref) == (1, 5, "Stopping", begun.ref)
    assert [each.id for each in store.store.unfinished() if each.namespace == namespace] == [begun.ref.id]
    store.store.set_status(begun.ref, restarts.done(new))
    assert await store.store.flush(timeout=SECONDS)
    status = (await read(api, begun.ref.id))["status"]
    assert (status["phase"], status["observedGeneration"]) == ("Done", 1)
    assert [(each["type"], each["reason"]) for each in status["conditions"]] == [("Complete", "Done")]
    await store.until(lambda: (found := store.shown(begun.ref.id)) is not None and found.is_finished)
    assert not [each for each in store.store.unfinished() if each.namespace == namespace]


async def test_a_request_becomes_a_round_by_one_write(api: client.KubeClient, namespace: str, store: Store) -> None:
    await api.create(names.collection(namespace), restarts.restart("mine"))
    await store.until(lambda: store.shown(f"{namespace}/mine") is not None)
    request = store.request(namespace)
    begun = await store.store.adopt(request, restarts.new_round(namespace, attempt=3), timeout=SECONDS)
    assert (begun.durable, begun.ref.name, begun.ref.attempt) == (True, "mine", 3)
    await store.until(lambda: (found := store.shown(begun.ref.id)) is not None and found.is_round)
    assert not [each for each in store.store.requests() if each.namespace == namespace]
    assert store.store.newest_attempt(begun.ref.gang) == 3


async def test_request_edited_in_the_meantime_is_still_accepted(
    api: client.KubeClient, namespace: str, store: Store
) -> None:
    await api.create(names.collection(namespace), restarts.restart("mine"))
    await store.until(lambda: store.shown(f"{namespace}/mine") is not None)
    request = store.request(namespace)
    change = {"metadata": {"labels": {"team": "a"}}}
    await api.patch(names.path(namespace, "mine"), change, content_type=client.Patch.MERGE)
    assert (await store.store.adopt(request, restarts.new_round(namespace), timeout=SECONDS)).durable
    assert (await read(api, f"{namespace}/mine"))["metadata"]["labels"]["team"] == "a"


async def test_a_request_can_be_refused(api: client.KubeClient, namespace: str, store: Store) -> None:
    await api.create(names.collection(namespace), restarts.restart("mine"))
    await store.until(lambda: store.shown(f"{namespace}/mine") is not None)
    decision = {"kind": "Observe", "reason": "NotAGang", "detail": "there are no such pods"}
    store.store.set_status(store.request(namespace), {"phase": "Refused", "decision": decision})
    assert await store.store.flush(timeout=SECONDS)
    assert (await read(api, f"{namespace}/mine"))["status"]["decision"]["reason"] == "NotAGang"
    await store.until(lambda: not [each for each in store.store.requests() if each.namespace == namespace])


async def test_writes_of_a_previous_leader_do_not_count(api: client.KubeClient, namespace: str, store: Store) -> None:
    new = restarts.new_round(namespace, epoch=5)
    begun = await store.store.create(new, timeout=SECONDS)
    async with running(api) as successor:
        found = successor.shown(begun.ref.id)
        assert found is not None
        assert await successor.store.resume(found, epoch=6, timeout=SECONDS)
        # A late one of the old leader.
        store.store.set_status(begun.ref, {**restarts.done(new), "phase": "Failed"})
        assert await store.store.flush(timeout=SECONDS)
        assert "status" not in await read(api, begun.ref.id)
        successor.store.set_status(begun.ref, restarts.done(new))
        assert await successor.store.flush(timeout=SECONDS)
    assert (await read(api, begun.ref.id))["status"]["phase"] == "Done"


async def test_one_of_two_leaders_takes_a_request(api: client.KubeClient, namespace: str, store: Store) -> None:
    await api.create(names.collection(namespace), restarts.restart("mine"))
    await store.until(lambda: store.shown(f"{namespace}/mine") is not None)
    request = store.request(namespace)
    async with running(api) as other:
        taken = await asyncio.gather(
            store.store.adopt(request, restarts.new_round(namespace, epoch=5), timeout=60.0),
            other.store.adopt(request, restarts.new_round(namespace, epoch=6), timeout=60.0),
        )
    assert sorted(each.durable for each in taken) == [False, True]


async def test_deletion_of_a_round_is_reported(api: client.KubeClient, namespace: str, store: Store) -> None:
    begun = await store.store.create(restarts.new_round(namespace), timeout=SECONDS)
    await store.until(lambda: store.shown(begun.ref.id) is not None)
    await api.delete(names.path(namespace, begun.ref.name))
    await store.until(lambda: store.shown(begun.ref.id) is None)
    last = [each for each in store.changes if each.restart.id == begun.ref.id][-1]
    assert (last.kind, last.restart.is_finished) == (RestartChangeKind.GONE, False)
    store.store.set_status(begun.ref, {"phase": "Failed"})  # the object no longer exists
    assert await store.store.flush(timeout=SECONDS)


async def test_status_of_another_object_of_the_name_stays(api: client.KubeClient, namespace: str, store: Store) -> None:
    begun = await store.store.create(restarts.new_round(namespace), timeout=SECONDS)
    await api.delete(names.path(namespace, begun.ref.name))
    await api.create(names.collection(namespace), restarts.restart(begun.ref.name))
    store.store.set_status(begun.ref, {"phase": "Done"})
    assert await store.store.flush(timeout=SECONDS)
    assert "status" not in await read(api, begun.ref.id)


async def adopted(api: client.KubeClient, namespace: str, store: Store, *, gang: str) -> Begun:
    """Create the request "mine" for a Job, in place of an older object of that name, and make it a round."""
    await replaced(api, namespace, store, gang=gang)
    request = store.request(namespace)
    return await store.store.adopt(request, restarts.new_round(namespace, name=gang), timeout=SECONDS)


async def replaced(api: client.KubeClient, namespace: str, store: Store, *, gang: str) -> None:
    """Create the request "mine", as ``kubectl replace --force`` does."""
    with contextlib.suppress(errors.NotFoundError):
        await api.delete(names.path(namespace, "mine"))
    made = await api.create(names.collection(namespace), restarts.restart("mine", gang={"kind": "Job", "name": gang}))
    uid = made["metadata"]["uid"]
    await store.until(lambda: (found := store.shown(f"{namespace}/mine")) is not None and found.uid == uid)


async def test_end_of_a_round_is_not_of_another_gangs_round_with_its_name(
    api: client.KubeClient, namespace: str, store: Store
) -> None:
    old = await adopted(api, namespace, store, gang="train")
    new = await adopted(api, namespace, store, gang="other")
    store.store.set_status(old.ref, restarts.done(restarts.new_round(namespace)))
    assert await store.store.flush(timeout=SECONDS)
    assert "status" not in await read(api, new.ref.id)
    store.store.set_status(new.ref, restarts.done(restarts.new_round(namespace, name="other")))
    assert await store.store.flush(timeout=SECONDS)
    assert (await read(api, new.ref.id))["status"]["phase"] == "Done"


async def test_request_in_place_of_a_round_under_way_is_refused(
    api: client.KubeClient, namespace: str, store: Store
) -> None:
    old = await adopted(api, namespace, store, gang="train")
    await replaced(api, namespace, store, gang="other")
    store.store.set_status(store.request(namespace), {"phase": "Refused"})
    store.store.set_status(old.ref, restarts.done(restarts.new_round(namespace)))
    assert await store.store.flush(timeout=SECONDS)
    assert (await read(api, old.ref.id))["status"]["phase"] == "Refused"


async def test_finished_objects_are_deleted_after_their_ttl(api: client.KubeClient, namespace: str) -> None:
    for name, ttl in (("short", 0), ("long", 3600)):
        gang = {"kind": "Job", "name": "train"}
        await api.create(names.collection(namespace), restarts.restart(name, gang=gang, ttlSecondsAfterFinished=ttl))
    async with running(api) as store:
        for name in ("short", "long"):
            store.store.set_status(store.store.restarts()[f"{namespace}/{name}"], {"phase": "Refused"})
        await store.until(lambda: store.shown(f"{namespace}/short") is None)
        assert store.shown(f"{namespace}/long") is not None
    with pytest.raises(errors.NotFoundError):
        await read(api, f"{namespace}/short")


async def test_round_continues_while_the_api_is_unavailable(tenant: Tenant, api: client.KubeClient) -> None:
    new = restarts.new_round(tenant.namespace)
    async with running(api) as store:
        await tenant.server.stop()
        begun = await store.store.create(new, timeout=0.2)
        assert not begun.durable
        store.store.set_status(begun.ref, {**restarts.done(new), "phase": "Releasing"})
        store.store.set_status(begun.ref, restarts.done(new))
        await tenant.server.start()
        assert await store.store.flush(timeout=SECONDS)
    assert (await read(api, begun.ref.id))["status"]["phase"] == "Done"


async def test_late_round_is_closed_and_not_continued(api: client.KubeClient, namespace: str) -> None:
    late, live = restarts.new_round(namespace, epoch=5), restarts.new_round(namespace, epoch=6)
    async with running(api) as former:
        begun = await former.store.create(late, timeout=SECONDS)
    async with running(api) as store:
        own = await store.store.create(live, timeout=SECONDS)
        await store.until(lambda: {begun.ref.id, own.ref.id} <= store.store.restarts().keys())
        assert begun.ref.id not in {each.id for each in store.store.unfinished()}
        assert own.ref.id in {each.id for each in store.store.unfinished()}
        await store.until(lambda: (shown := store.shown(begun.ref.id)) is not None and shown.is_finished)
        found = await read(api, begun.ref.id)
        assert (found["status"]["phase"], found["status"]["failures"][0]["reason"]) == ("Failed", "Superseded")
        assert "status" not in await read(api, own.ref.id)


async def test_forged_attempt_does_not_exhaust_the_numbers(
    api: client.KubeClient, namespace: str, store: Store
) -> None:
    forged = restarts.new_round(namespace, attempt=2**31 - 1)
    await api.create(names.collection(namespace), forged.body("forged"))
    await store.until(lambda: store.shown(f"{namespace}/forged") is not None)
    assert 0 < store.store.newest_attempt(forged.gang) < 2**31 - 1_000_000


async def test_attempt_that_only_an_agent_knows_is_not_given_again(store: Store) -> None:
    gang = GangKey("team", "Job", "unwritten")
    store.store.note_attempt(gang, 7)
    assert store.store.newest_attempt(gang) == 7


async def test_store_of_a_follower_is_ready(api: client.KubeClient) -> None:
    reports: list[ComponentStatus] = []
    store = RestartStore(api=api, report=reports.append, is_alive=lambda _: True)
    assert reports[-1].state is ComponentState.IDLE
    async with background.running(store.run()), asyncio.timeout(SECONDS):
        await store.wait_synced()
    assert reports[-1].state is ComponentState.IDLE
