"""PodWatch against a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubemend.agent.model.workloads import PodChange, PodChangeKind, PodUid, PodView
from kubemend.agent.restart import options
from kubemend.agent.sources import pods
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths, shares
from tests.control_plane import DEADLINES, ControlPlane, Tenant
from tests.fakes.listing_api import ListingApi
from tests.unit.reporters.running import started

_STATUS = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 77}
NOVEL = {"status": {"containerStatuses": [_STATUS]}}


def novel(text: bytes) -> bytes:
    """Insert a value from a newer Kubernetes that this agent cannot parse."""
    return text.replace(b'"restartCount":77', b'"restartCount":"often"')


def pod(name: str, *, node: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}


def sometimes(text: bytes) -> bytes:
    """Insert a value that is invalid in every Kubernetes version so far."""
    return text.replace(b'"restartPolicy":"OnFailure"', b'"restartPolicy":"Sometimes"')


class Env:
    """A running PodWatch, its reports, and a client of the same server."""

    def __init__(self, control_plane: ControlPlane, tenant: Tenant, api: client.KubeClient) -> None:
        self.control_plane = control_plane
        self.node = tenant.node
        self.namespace = tenant.namespace
        self.pods = tenant.of("pods")
        self.server = tenant.server
        self.api = api
        self.reports: asyncio.Queue[ComponentStatus] = asyncio.Queue()
        self.changes: asyncio.Queue[PodChange] = asyncio.Queue()
        self.watch = pods.PodWatch(
            api=api,
            node_name=tenant.node,
            report=self.reports.put_nowait,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        self.watch.subscribe(self.changes.put_nowait)

    async def state(self, wanted: ComponentState) -> ComponentStatus:
        """Wait for a report of that state."""
        while (report := await self.reports.get()).state is not wanted:
            pass
        return report

    async def change(self, kind: PodChangeKind) -> PodView:
        """Wait for a change of that kind."""
        while (change := await self.changes.get()).kind is not kind:
            pass
        return change.pod

    async def create(self, name: str, *, node: str = "") -> dict[str, Any]:
        """Create a pod, on the watched node or on another one."""
        return await self.api.create(self.pods, pod(name, node=node or self.node))

    async def patch_status(self, name: str, status: dict[str, Any]) -> None:
        await self.api.patch_status(f"{self.pods}/{name}", status)

    async def delete(self, name: str) -> None:
        """Delete a pod without a grace period."""
        await self.api.delete(f"{self.pods}/{name}", options={"gracePeriodSeconds": 0})

    @contextlib.asynccontextmanager
    async def unseen(self) -> AsyncIterator[client.KubeClient]:
        """Yield a client that reaches the server while the proxy is down."""
        async with client.connect(kubeconfig=self.control_plane.kubeconfig, deadlines=DEADLINES) as api:
            yield api


@pytest.fixture
async def env(control_plane: ControlPlane, tenant: Tenant) -> AsyncIterator[Env]:
    async with asyncio.timeout(120), tenant.client() as api:
        made = Env(control_plane, tenant, api)
        task = asyncio.create_task(made.watch.run())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_pods_of_this_node_come_and_go(env: Env) -> None:
    assert not env.watch.synced
    await env.state(ComponentState.READY)
    assert env.watch.synced
    await env.create("elsewhere", node=f"{env.node}-2")
    await env.create("a")
    appeared = await env.change(PodChangeKind.APPEARED)
    assert appeared.ref.name == "a"
    assert list(env.watch.pods()) == [appeared.ref.uid]
    assert env.watch.by_name(env.namespace, "a") == appeared
    assert env.watch.by_name(env.namespace, "elsewhere") is None
    await env.delete("a")
    assert (await env.change(PodChangeKind.GONE)).ref == appeared.ref
    assert not env.watch.pods()


async def test_first_listing_can_be_awaited_without_pods(env: Env) -> None:
    await env.watch.until_synced()
    assert env.watch.synced
    assert not env.watch.pods()


async def test_wait_ends_with_the_awaited_change(env: Env) -> None:
    await env.state(ComponentState.READY)
    created = await env.create("a")
    uid = PodUid(created["metadata"]["uid"])
    waiting = asyncio.create_task(env.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=60))
    await env.change(PodChangeKind.APPEARED)
    await env.patch_status("a", {"status": {"phase": "Running"}})
    view = await waiting
    assert view is not None
    assert view.phase == "Running"
    assert await env.watch.wait_for(uid, lambda view: True, timeout=60) == view


async def test_wait_ends_on_deletion_or_timeout(env: Env) -> None:
    await env.state(ComponentState.READY)
    created = await env.create("a")
    uid = PodUid(created["metadata"]["uid"])
    assert await env.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=0.01) is None
    waiting = asyncio.create_task(env.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=30))
    await env.change(PodChangeKind.APPEARED)
    await env.delete("a")
    assert await waiting is None


async def test_view_persists_through_an_outage_and_catches_up(env: Env) -> None:
    await env.state(ComponentState.READY)
    await env.create("stays")
    await env.create("goes")
    for _ in range(2):
        await env.change(PodChangeKind.APPEARED)
    await env.server.stop()
    report = await env.state(ComponentState.DEGRADED)
    assert "cannot" in report.message
    assert report.hint
    assert len(env.watch.pods()) == 2
    async with env.unseen() as api:
        await api.delete(f"{env.pods}/goes", options={"gracePeriodSeconds": 0})
    await env.server.start()
    assert (await env.change(PodChangeKind.GONE)).ref.name == "goes"
    await env.state(ComponentState.READY)
    assert [view.ref.name for view in env.watch.pods().values()] == ["stays"]


async def test_broken_watch_is_resumed(env: Env) -> None:
    await env.state(ComponentState.READY)
    await env.create("a")
    await env.change(PodChangeKind.APPEARED)
    env.server.cut_watches()
    await env.state(ComponentState.READY)
    await env.create("b")
    assert (await env.change(PodChangeKind.APPEARED)).ref.name == "b"


async def test_lost_history_is_listed_again(env: Env) -> None:
    await env.state(ComponentState.READY)
    env.server.fail_next(1, status=410, method="GET", path="/pods")
    env.server.cut_watches()
    await env.state(ComponentState.READY)
    await env.create("a")
    assert (await env.change(PodChangeKind.APPEARED)).ref.name == "a"


async def test_invalid_pod_hides_no_other(env: Env) -> None:
    await env.state(ComponentState.READY)
    env.server.rewrite = sometimes
    odd = pod("odd", node=env.node)
    odd["spec"]["restartPolicy"] = "OnFailure"
    await env.api.create(env.pods, odd)
    await env.create("a")
    assert (await env.change(PodChangeKind.APPEARED)).ref.name == "a"


async def test_second_pod_of_a_name_is_another_pod(env: Env) -> None:
    await env.state(ComponentState.READY)
    for _ in range(2):
        await env.create("a")
        await env.delete("a")
    gone = [await env.change(PodChangeKind.GONE) for _ in range(2)]
    assert gone[0].ref != gone[1].ref


async def test_known_pod_invalid_at_new_list_stays_unchanged(env: Env) -> None:
    """Removing it would lose the containers that a round holds in it."""
    await env.state(ComponentState.READY)
    await env.create("a")
    known = await env.change(PodChangeKind.APPEARED)
    await env.server.stop()
    await env.state(ComponentState.DEGRADED)
    env.server.rewrite = novel
    async with env.unseen() as api:
        await api.patch_status(f"{env.pods}/a", NOVEL)
    with capture_logs() as logs:
        await env.server.start()
        await env.state(ComponentState.READY)
    assert env.watch.pods() == {known.ref.uid: known}
    assert env.changes.empty()
    (logged,) = [line for line in logs if line["event"] == "informer.invalid"]
    assert (logged["name"], logged["log_level"]) == ("a", "warning")
    assert "often" in logged["error"]


async def test_known_pod_is_gone_although_its_last_object_is_invalid(env: Env) -> None:
    await env.state(ComponentState.READY)
    await env.create("a")
    known = await env.change(PodChangeKind.APPEARED)
    env.server.rewrite = novel
    await env.patch_status("a", NOVEL)
    await env.delete("a")
    assert await env.change(PodChangeKind.GONE) == known
    assert not env.watch.pods()


async def test_requested_pod_that_is_invalid_is_none(env: Env) -> None:
    await env.state(ComponentState.READY)
    await env.create("a")
    known = await env.change(PodChangeKind.APPEARED)
    assert await env.watch.ask(known.ref, timeout=60) == known
    env.server.rewrite = novel
    await env.patch_status("a", NOVEL)
    with capture_logs() as logs:
        assert await env.watch.ask(known.ref, timeout=60) is None
    assert [line["pod"] for line in logs if line["event"] == "pods.invalid"] == [f"{env.namespace}/a"]


class EndsAtOnce:
    """A server without pods that ends each watch at once: normally, or with an error."""

    def __init__(self, end: errors.KubeError | None) -> None:
        self.lists: list[tuple[object, int]] = []
        self.watches = 0
        self._end = end

    async def pages(self, _: str, *, params: client.Params, limit: int, **__: object) -> AsyncIterator[client.Listing]:
        self.lists.append((params, limit))
        yield client.Listing([], "5")

    async def watch(self, _: str, **__: object) -> AsyncIterator[object]:
        self.watches += 1
        assert self.watches < 100, "it is hammered"
        if self._end is not None:
            raise self._end
        if self.watches < 0:
            yield object()


class SecondOverError(Exception):
    """One second of waiting is over."""


class OneSecond(aio.Backoff):
    """Waits on a clock of its own, for at most one second in all."""

    def __init__(self) -> None:
        super().__init__(first=0.2, limit=10.0)
        self._now = 0.0

    async def wait(self) -> None:
        self._now += self.next_wait()
        if self._now > 1:
            raise SecondOverError


async def watch_for_a_second(server: EndsAtOnce) -> None:
    api: Any = server
    watch = pods.PodWatch(api=api, node_name="n1", report=lambda _: None, backoff=OneSecond())
    with pytest.raises(SecondOverError):
        await watch.run()


@pytest.mark.parametrize("end", [None, errors.GoneError("too old"), errors.ApiUnavailableError("broken")], ids=repr)
async def test_server_that_ends_each_watch_is_not_hammered(end: errors.KubeError | None) -> None:
    server = EndsAtOnce(end)
    await watch_for_a_second(server)
    assert server.watches == 3  # at 0, 0.2 and 0.6 s


async def test_pods_of_the_node_are_listed_without_limit() -> None:
    """With a limit, servers bypass their cache."""
    server = EndsAtOnce(None)
    await watch_for_a_second(server)
    assert server.lists == [({"fieldSelector": "spec.nodeName=n1"}, 0)]


async def test_oversized_pod_is_kept_by_its_identity_alone() -> None:
    containers = [{"name": f"c{number}"} for number in range(20_000)]
    huge = {"metadata": {"namespace": "ml", "name": "huge", "uid": "u1"}, "spec": {"containers": containers}}
    bare: list[int] = []
    watch = pods.PodWatch(api=ListingApi({paths.PODS: [huge]}), node_name="n", report=lambda _: None, bare=bare.append)
    async with started(watch):
        await watch.until_synced()
        (view,) = watch.pods().values()
    assert (view.ref.name, bare[-1]) == ("huge", 1)
    assert shares.weight(view) < 5000
    with pytest.raises(options.BadAnnotationError, match="not kept"):
        options.parse(view.annotations)


async def test_all_pods_leave_with_their_node_and_stay_if_its_shutdown_is_cancelled(env: Env) -> None:
    await env.create("old")
    appeared = await env.change(PodChangeKind.APPEARED)
    assert appeared.leaving == ""
    env.watch.node_shuts_down(True)
    left = await env.change(PodChangeKind.CHANGED)
    assert (left.ref, left.leaving) == (appeared.ref, "NodeShutdown")
    assert env.watch.pods()[left.ref.uid] == left
    await env.create("new")
    assert (await env.change(PodChangeKind.APPEARED)).leaving == "NodeShutdown"
    asked = await env.watch.ask(left.ref, timeout=60.0)
    assert asked is not None
    assert asked.leaving == "NodeShutdown"
    env.watch.node_shuts_down(False)
    back = [await env.change(PodChangeKind.CHANGED) for _ in range(2)]
    assert {pod.ref.name: pod.leaving for pod in back} == {"old": "", "new": ""}
    assert [pod.leaving for pod in env.watch.pods().values()] == ["", ""]


async def test_pod_that_leaves_for_a_reason_of_its_own_keeps_it_in_a_shutdown(env: Env) -> None:
    await env.create("evicted")
    await env.change(PodChangeKind.APPEARED)
    await env.patch_status("evicted", {"status": {"phase": "Failed", "reason": "Evicted"}})
    evicted = await env.change(PodChangeKind.CHANGED)
    env.watch.node_shuts_down(True)
    assert env.watch.pods()[evicted.ref.uid].leaving == "Evicted"
