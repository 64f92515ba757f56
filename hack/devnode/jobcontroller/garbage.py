"""The garbage collector, for JobSets, Jobs, pods, Services and the records of rounds.

What is deleted in the foreground goes after its dependents; what has lost its owner goes, unless it was orphaned.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from common import aio
from common.kube import client, errors, mirror, paths
from common.parts import PartStatus
from hack.devnode.api.deletion import FOREGROUND

log = structlog.get_logger(__name__)

_ORPHAN: Final = "orphan"
_AGAIN_SECONDS: Final = 0.5
_KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "JobSet": ("jobsets", "jobset.x-k8s.io", "v1alpha2"),
    "Job": ("jobs", "batch", "v1"),
    "Pod": ("pods", "", "v1"),
    "Service": ("services", "", "v1"),
    "Restart": ("restarts", "restarts.kubemend.io", "v1alpha1"),
}

Json = dict[str, Any]


class Collector:
    """``run`` never returns. Kinds that are not defined when it starts are not looked at."""

    def __init__(self, api: client.KubeClient) -> None:
        self._api = api
        self._news = asyncio.Event()
        self._mirrors: dict[str, mirror.Mirror[Json]] = {}

    async def run(self) -> None:
        """Collect for ever."""
        async with asyncio.TaskGroup() as group:
            for kind, (plural, api_group, version) in _KINDS.items():
                path = paths.collection(plural, group=api_group, version=version)
                if not await self._is_served(path):
                    continue
                made: mirror.Mirror[Json] = mirror.Mirror(api=self._api, path=path, reduce=_whole, report=_ignored)
                made.subscribe(lambda _: self._news.set())
                self._mirrors[kind] = made
                aio.spawn_eternal(group, made.run(), name=f"{plural} watched")
            for each in self._mirrors.values():
                await each.wait_synced()
            while True:
                self._news.clear()
                try:
                    await self._collect()
                except errors.KubeError as error:
                    log.info("garbage.again", error=str(error))
                    asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._news.set)
                await self._news.wait()

    async def _is_served(self, path: str) -> bool:
        try:
            await self._api.list(path, params={"limit": 1})
        except errors.NotFoundError:
            return False
        return True

    async def _collect(self) -> None:
        dependents: dict[str, list[tuple[str, Json]]] = {}
        alive: set[str] = set()
        for kind, each in self._mirrors.items():
            for uid, obj in each.items().items():
                alive.add(uid)
                for owner in obj["metadata"].get("ownerReferences") or ():
                    if owner["kind"] in self._mirrors:
                        dependents.setdefault(owner["uid"], []).append((kind, obj))
        for kind, each in self._mirrors.items():
            for uid, obj in list(each.items().items()):
                await self._finalize(kind, obj, dependents.get(uid, []))
        for owner_uid, found in dependents.items():
            if owner_uid not in alive:
                for kind, obj in found:
                    await self._collect_one(kind, obj, owner_uid)

    async def _finalize(self, kind: str, obj: Json, dependents: list[tuple[str, Json]]) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        if "deletionTimestamp" not in obj["metadata"]:
            return
        if _ORPHAN in finalizers:
            for below, each in dependents:
                left = [one for one in each["metadata"]["ownerReferences"] if one["uid"] != obj["metadata"]["uid"]]
                await self._patch(below, each, ownerReferences=left or None)
            await self._patch(kind, obj, finalizers=[each for each in finalizers if each != _ORPHAN] or None)
        elif FOREGROUND in finalizers:
            for below, each in dependents:
                if "deletionTimestamp" not in each["metadata"]:
                    await self._delete(below, each, policy="Foreground")
            if not dependents:
                await self._patch(kind, obj, finalizers=[each for each in finalizers if each != FOREGROUND] or None)

    async def _collect_one(self, kind: str, obj: Json, owner_uid: str) -> None:
        """Delete what has lost its owner, once the API server itself says that the owner is not there."""
        if "deletionTimestamp" in obj["metadata"]:
            return
        (owner,) = [each for each in obj["metadata"]["ownerReferences"] if each["uid"] == owner_uid]
        try:
            found = await self._api.get(self._path(owner["kind"], {**obj["metadata"], "name": owner["name"]}))
        except errors.NotFoundError:
            found = {"metadata": {"uid": ""}}
        if found["metadata"]["uid"] != owner_uid:
            await self._delete(kind, obj, policy="Background")

    async def _patch(self, kind: str, obj: Json, **metadata: Any) -> None:
        body = {"metadata": {"uid": obj["metadata"]["uid"], **metadata}}
        try:
            await self._api.patch(self._path(kind, obj["metadata"]), body, content_type=client.Patch.MERGE)
        except (errors.NotFoundError, errors.InvalidError):
            return  # it is gone

    async def _delete(self, kind: str, obj: Json, *, policy: str) -> None:
        metadata = obj["metadata"]
        log.info("garbage.deletes", kind=kind, name=metadata["name"])
        options = {"propagationPolicy": policy, "preconditions": {"uid": metadata["uid"]}}
        try:
            await self._api.delete(self._path(kind, metadata), options=options)
        except (errors.NotFoundError, errors.ConflictError):
            return

    def _path(self, kind: str, metadata: Json) -> str:
        plural, group, version = _KINDS[kind]
        collection = paths.collection(plural, namespace=metadata["namespace"], group=group, version=version)
        return f"{collection}/{metadata['name']}"


def _whole(obj: Json) -> Json:
    return obj


def _ignored(_: PartStatus) -> None:
    """Nobody asks how a stand-in is."""
