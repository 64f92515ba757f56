"""Pods that must be replaced, and the Events about rounds, against an API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from kubemend.common import aio, conditions
from kubemend.common.kube import client, errors, paths
from kubemend.controller.model.members import PodRef, PodUid
from kubemend.controller.model.rounds import Recreate
from kubemend.controller.restarts.events import ObjectRef, RoundEventRecorder
from kubemend.controller.restarts.pod_replacer import Outcome, PodReplacer
from tests.contract.api import objects

SECONDS = 60.0


class Recreation:
    """A pod_replacer that runs, and the results of its pods."""

    def __init__(self, api: client.KubeClient) -> None:
        self.outcomes: asyncio.Queue[tuple[str, Outcome]] = asyncio.Queue()
        self.pod_replacer = PodReplacer(
            api=api,
            on_outcome=lambda pod, outcome, _: self.outcomes.put_nowait((pod.name, outcome)),
            backoff=lambda: aio.Backoff(first=0.05, limit=0.2),
        )

    async def next(self) -> tuple[str, Outcome]:
        async with asyncio.timeout(SECONDS):
            return await self.outcomes.get()


@pytest.fixture
async def recreation(api: client.KubeClient) -> AsyncIterator[Recreation]:
    found = Recreation(api)
    task = asyncio.create_task(found.pod_replacer.run())
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def create(api: client.KubeClient, namespace: str, node: str, name: str = "a") -> PodRef:
    made = await api.create(objects.pods(namespace), objects.pod(name, node=node))
    return PodRef(namespace, name, PodUid(made["metadata"]["uid"]))


def wanted(pod: PodRef, **more: Any) -> Recreate:
    return Recreate(pod, reason="NodeLost", message="node-1 is not ready", **more)


def marks(pod: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in pod["status"].get("conditions", ())}


async def test_a_pod_is_marked_and_then_ends(
    api: client.KubeClient, namespace: str, node: str, recreation: Recreation
) -> None:
    pod = await create(api, namespace, node)
    recreation.pod_replacer.recreate(wanted(pod))
    assert await recreation.next() == ("a", Outcome.DELETED)
    found = await api.get(paths.pod(namespace, "a"))
    assert marks(found)[conditions.DISRUPTION_TARGET] == ("True", "NodeLost")
    assert conditions.DEVICE_FAILURE not in marks(found)
    assert found["metadata"]["deletionGracePeriodSeconds"] == 1
    recreation.pod_replacer.recreate(wanted(pod))  # a repetition changes nothing
    recreation.pod_replacer.recreate(wanted(pod, force=True))
    assert await recreation.next() == ("a", Outcome.DELETED)
    with pytest.raises(errors.NotFoundError):
        await api.get(paths.pod(namespace, "a"))
    assert recreation.outcomes.empty()


async def test_failing_device_is_reported(
    api: client.KubeClient, namespace: str, node: str, recreation: Recreation
) -> None:
    pod = await create(api, namespace, node)
    recreation.pod_replacer.recreate(wanted(pod, device_failure=True))
    assert await recreation.next() == ("a", Outcome.DELETED)
    assert marks(await api.get(paths.pod(namespace, "a")))[conditions.DEVICE_FAILURE] == ("True", "NodeLost")


async def test_replacement_pod_is_never_touched(
    api: client.KubeClient, namespace: str, node: str, recreation: Recreation
) -> None:
    pod = await create(api, namespace, node)
    await api.delete(paths.pod(namespace, "a"), options={"gracePeriodSeconds": 0})
    successor = await create(api, namespace, node)
    before = await api.get(paths.pod(namespace, "a"))
    recreation.pod_replacer.recreate(wanted(pod, force=True))
    assert await recreation.next() == ("a", Outcome.GONE)
    assert await api.get(paths.pod(namespace, "a")) == before
    assert before["metadata"]["uid"] == successor.uid


async def test_deleted_pod_needs_nothing(
    api: client.KubeClient, namespace: str, node: str, recreation: Recreation
) -> None:
    pod = await create(api, namespace, node)
    await api.delete(paths.pod(namespace, "a"), options={"gracePeriodSeconds": 0})
    recreation.pod_replacer.recreate(wanted(pod))
    assert await recreation.next() == ("a", Outcome.GONE)


async def test_each_event_is_recorded_once(api: client.KubeClient, namespace: str, node: str) -> None:
    pod = await create(api, namespace, node)
    about = ObjectRef("v1", "Pod", namespace, pod.name, pod.uid)
    for replica in range(2):  # the second is another leader, which does not know the earlier Events
        recorder = RoundEventRecorder(api=api, report=lambda _: None)
        task = asyncio.create_task(recorder.run())
        for subject in ("round-1", "round-1", "round-2", f"round-of-{replica}"):
            recorder.record(about, reason="RoundBegan", message=f"{subject} began", warning=True, subject=subject)
        async with asyncio.timeout(SECONDS):
            async for _ in aio.ticks(period=0.05):
                listing = await api.list(
                    paths.collection("events", namespace=namespace), params={"fieldSelector": "involvedObject.name=a"}
                )
                if f"round-of-{replica} began" in {each["message"] for each in listing.items}:
                    break
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    found = sorted((each["message"], each["type"], each["count"]) for each in listing.items)
    assert found == [(f"round-{name} began", "Warning", 1) for name in ("1", "2", "of-0", "of-1")]
