"""Binds pods to nodes, as ``scheduling`` chooses."""

import asyncio
from typing import Any

import structlog

from common import aio
from common.kube import client, errors, mirror, paths
from common.parts import PartStatus
from hack.devnode.jobcontroller import scheduling

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 0.5

Json = dict[str, Any]


class Scheduler:
    """Schedules all pods, one after another. ``run`` never returns."""

    def __init__(self, api: client.KubeClient) -> None:
        self._api = api
        self._pods: mirror.Mirror[Json] = mirror.Mirror(api=api, path=paths.PODS, reduce=_whole, report=_ignored)
        self._nodes: mirror.Mirror[Json] = mirror.Mirror(api=api, path=paths.NODES, reduce=_whole, report=_ignored)
        self._bound: dict[str, Json] = {}  # the watch has not told of them yet
        self._news = asyncio.Event()
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(lambda _: self._news.set())

    async def run(self) -> None:
        """Schedule for ever."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._pods.run(), name="pods")
            aio.spawn_eternal(group, self._nodes.run(), name="nodes")
            await self._pods.wait_synced()
            await self._nodes.wait_synced()
            while True:
                self._news.clear()
                await self._schedule()
                await self._news.wait()

    def _pod_changed(self, change: mirror.Change[Json]) -> None:
        if change.kind is mirror.ChangeKind.GONE or change.value["spec"].get("nodeName"):
            self._bound.pop(change.uid, None)
        self._news.set()

    async def _schedule(self) -> None:
        seen = {**self._pods.items(), **self._bound}
        placed = [each for each in seen.values() if each["spec"].get("nodeName")]
        for pod in sorted(filter(scheduling.is_waiting, seen.values()), key=_age):
            name = scheduling.choose(pod, nodes=self._nodes.items().values(), placed=placed)
            if name is not None and await self._bind(pod, name):
                bound = self._bound[pod["metadata"]["uid"]] = {**pod, "spec": {**pod["spec"], "nodeName": name}}
                placed.append(bound)

    async def _bind(self, pod: Json, node: str) -> bool:
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._api.create(f"{paths.pod(metadata['namespace'], metadata['name'])}/binding", body)
        except errors.NotFoundError:
            return False
        except errors.KubeError as error:
            log.info("pod.not_bound", pod=metadata["name"], node=node, error=str(error))
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._news.set)
            return False
        log.info("pod.bound", pod=metadata["name"], node=node)
        return True


def _age(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


def _whole(obj: Json) -> Json:
    return obj


def _ignored(_: PartStatus) -> None:
    """Nobody asks how a stand-in is."""
