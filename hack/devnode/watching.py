"""Follow a collection of the API server: all of its objects, now and after each change."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, watch_protocol

Json = dict[str, Any]


async def collection(
    api: kube.KubeClient, path: str, *, params: kube.Params | None = None
) -> AsyncGenerator[list[Json], None]:
    """Yield the objects now, and again after each change, indefinitely; a watch costs less than polling."""
    while True:
        listing = await api.list(path, params=params)
        known = {each["metadata"]["name"]: each for each in listing.items}
        yield list(known.values())
        watch = api.watch(path, params=params, resource_version=listing.resource_version)
        with contextlib.suppress(errors.GoneError, errors.ApiUnavailableError):  # it is listed again then
            async with contextlib.aclosing(watch) as changes:
                async for change in changes:
                    if change.type is watch_protocol.EventType.BOOKMARK:
                        continue
                    name = change.object["metadata"]["name"]
                    known[name] = change.object
                    if change.type is watch_protocol.EventType.DELETED:
                        del known[name]
                    yield list(known.values())
