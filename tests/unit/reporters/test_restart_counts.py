"""The restart counts of containers are kept on the pods that read them, and on no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.model.workloads import ContainerRole, ContainerSpec, PodRef, PodUid, PodView, RestartPolicy
from kubemend.agent.reporters.restart_counts import RestartCounts, counts
from kubemend.agent.sources import pod_objects
from kubemend.common import aio
from kubemend.common.kube import errors

REF = PodRef("team", "solo", PodUid("u"))
SECONDS = 60.0


def pod(*restarts: int, **changes: Any) -> PodView:
    names = ("trainer", "helper")
    defaults: dict[str, Any] = {
        "ref": REF,
        "phase": "Running",
        "restart_policy": RestartPolicy.ALWAYS,
        "containers": tuple(
            ContainerSpec(name, ContainerRole.MAIN, restart_count=count)
            for name, count in zip(names, restarts, strict=False)
        ),
        "reads_restarts": True,
    }
    return PodView(**defaults | changes)


@dataclass
class Api:
    """Accepts patches; ``fails`` are the errors of the next calls."""

    fails: list[errors.KubeError] = field(default_factory=list)
    patches: "asyncio.Queue[tuple[str, dict[str, Any]]]" = field(default_factory=asyncio.Queue)

    async def patch_status(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        self.patches.put_nowait((path, patch))
        if self.fails:
            raise self.fails.pop(0)
        return {}

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            _, patch = await self.patches.get()
        return patch


@dataclass
class Env:
    api: Api = field(default_factory=Api)
    views: dict[PodUid, PodView] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reporter = RestartCounts(api=self.api, pods=lambda: self.views, spacing=0.0)  # type: ignore[arg-type]

    def show(self, view: PodView) -> None:
        self.views[view.ref.uid] = view
        self.reporter.observe(view)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            work = aio.spawn_eternal(tasks, self.reporter.run(), name="counts")
            yield
            work.cancel()


def test_restarted_targets_are_counted() -> None:
    assert counts(pod(3, 0)) == "trainer=3"
    assert counts(pod(3, 1)) == "trainer=3,helper=1"
    assert counts(pod(0, 0)) == ""
    assert counts(pod(3, 1, annotations={"kubemend.io/containers": "helper"})) == "helper=1"
    assert counts(pod(3, 1, annotations={"kubemend.io/restart": "Perhaps"})) == ""


def test_annotation_of_many_targets_is_as_long_as_views_keep_it() -> None:
    """A longer one would come back cut, and be written again and again."""
    names = [f"worker-{number:02}-{'x' * 50}" for number in range(30)]
    many = tuple(ContainerSpec(name, ContainerRole.MAIN, restart_count=7) for name in names)
    written = counts(pod(containers=many))
    assert written == ",".join(f"{name}=7" for name in names[:15])
    metadata = {"namespace": "team", "name": "solo", "uid": "u", "annotations": {"kubemend.io/restarts": written}}
    view = pod_objects.pod_view({"metadata": metadata, "spec": {"containers": []}})
    assert view.annotations["kubemend.io/restarts"] == written


async def test_restart_is_written_once_and_changes_are_gathered() -> None:
    env = Env()
    env.show(pod(1))
    env.show(pod(2))
    async with env.running():
        patch = await env.api.next()
        assert patch == {"metadata": {"uid": "u", "annotations": {"kubemend.io/restarts": "trainer=2"}}}
        env.show(pod(2, annotations={"kubemend.io/restarts": "trainer=2"}))
        env.show(pod(3, annotations={"kubemend.io/restarts": "trainer=2"}))
        patch = await env.api.next()
        assert patch["metadata"]["annotations"] == {"kubemend.io/restarts": "trainer=3"}
        assert env.api.patches.empty()


@pytest.mark.parametrize(
    "changes", [{"reads_restarts": False}, {"deleting": True}, {"phase": "Succeeded"}, {"containers": ()}]
)
async def test_non_reading_or_ended_pod_is_not_written(changes: dict[str, Any]) -> None:
    env = Env()
    env.show(replace(pod(1), **changes))
    env.show(pod(1, ref=replace(REF, uid=PodUid("another"))))
    async with env.running():
        assert (await env.api.next())["metadata"]["uid"] == "another"
        assert env.api.patches.empty()


async def test_failed_write_is_retried_and_refused_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    env = Env(Api(fails=[errors.ApiUnavailableError("away"), errors.ForbiddenError("no")]))
    async with env.running():
        env.show(pod(1))
        await env.api.next()
        await env.api.next()  # again, and now it is refused
        env.show(pod(1, ref=replace(REF, uid=PodUid("another"))))
        assert (await env.api.next())["metadata"]["uid"] == "another"
        assert env.api.patches.empty()


def item(path: str) -> dict[str, Any]:
    return {"items": [{"path": "restarts", "fieldRef": {"fieldPath": path}}]}


@pytest.mark.parametrize(
    ("volumes", "reads"),
    [
        (None, False),
        ([{"name": "v", "emptyDir": {}}], False),
        ([{"name": "v", "downwardAPI": item("metadata.annotations['kubemend.io/restarts']")}], True),
        ([{"name": "v", "downwardAPI": item("metadata.annotations")}], False),
        ([{"name": "v", "downwardAPI": {"items": [{"path": "c", "resourceFieldRef": {}}]}}], False),
        ([{"name": "v", "projected": {"sources": [
            {"secret": {"name": "s"}},
            {"downwardAPI": item("metadata.annotations['kubemend.io/restarts']")},
        ]}}], True),
        ([{"name": "v", "projected": {"sources": None}}], False),
    ],
)  # fmt: skip
def test_downward_api_volume_marks_a_reading_pod(volumes: Any, *, reads: bool) -> None:
    obj = {
        "metadata": {"namespace": "team", "name": "solo", "uid": "u"},
        "spec": {"containers": [], "volumes": volumes},
    }
    assert pod_objects.pod_view(obj).reads_restarts is reads
