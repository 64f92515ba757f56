"""An API server of fixed collections: each is listed once, and its watch stays silent."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from kubemend.common.kube import client, watch_protocol


class ListingApi(client.KubeClient):
    """Serve ``objects`` by the collection's path; others are empty. ``asked`` records where only metadata is asked."""

    def __init__(self, objects: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())
        self.asked: dict[tuple[str, str], bool] = {}
        self._objects = objects or {}

    async def list(self, path: str, **_: Any) -> client.Listing:
        return client.Listing([], "1")

    async def pages(self, path: str, **options: Any) -> AsyncGenerator[client.Listing, None]:
        self.asked["list", path] = options["metadata_only"]
        yield client.Listing([options["project"](obj) for obj in self._objects.get(path, ())], "1")

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        self.asked["watch", path] = options["metadata_only"]
        await asyncio.Event().wait()
        yield watch_protocol.WatchEvent(watch_protocol.EventType.BOOKMARK, {})
