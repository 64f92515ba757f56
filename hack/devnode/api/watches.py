"""A watch: what happened to a selection of objects after a resource version, and what happens from now on."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from hack.devnode.api import errors, selectors
from hack.devnode.api.operations import Place
from hack.devnode.api.store import Change, Store

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a watcher wants to hear of."""

    place: Place
    matches: selectors.Predicate

    def event(self, change: Change) -> Object | None:
        """Return the event for a change, or None. What enters the selection is ADDED, what leaves it is DELETED."""
        key, resource = change.key, self.place.resource
        if (key.group, key.plural) != (resource.group, resource.plural):
            return None
        if self.place.namespace not in ("", key.namespace) or self.place.name not in ("", key.name):
            return None
        was = change.before is not None and self.matches(change.before)
        now = change.after is not None and self.matches(change.after)
        if not was and not now:
            return None
        kind = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
        return {"type": kind, "object": change.last}


async def stream(
    store: Store,
    selection: Selection,
    *,
    since: str,
    bookmarks: bool,
    timeout: float,
    bookmark_period: float,
    shown: Callable[[Object], Object] = lambda obj: obj,
) -> AsyncIterator[bytes]:
    """Yield the lines of a watch until ``timeout`` seconds are over. ``shown`` is what they show of an object.

    ``since`` "" or "0" begins with the present state, as ADDED events. A version that is too old ends the watch at
    once with an ERROR event of code 410. Bookmarks come every ``bookmark_period`` seconds, and last.
    """
    try:
        if since in ("", "0"):
            version = store.version
            for obj in store.select(selection.place.resource, namespace=selection.place.namespace):
                if selection.matches(obj) and selection.place.name in ("", obj["metadata"]["name"]):
                    yield _line({"type": "ADDED", "object": shown(obj)})
        else:
            version = int(since)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while (left := end - loop.time()) > 0:
            for change in store.after(version):
                version = change.version
                if (event := selection.event(change)) is not None:
                    yield _line({**event, "object": shown(event["object"])})
            try:
                async with asyncio.timeout(min(left, bookmark_period)):
                    await store.wait(version)
            except TimeoutError:
                if bookmarks:
                    yield _line(_bookmark(selection.place, version))
    except errors.ApiError as error:
        yield _line({"type": "ERROR", "object": error.body()})


def _bookmark(place: Place, version: int) -> Object:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    resource = place.resource
    return {
        "type": "BOOKMARK",
        "object": {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata},
    }


def _line(event: Object) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
