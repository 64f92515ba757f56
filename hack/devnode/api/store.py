"""Versioned objects in memory, with the history that watches are served from.

Objects in the store are never changed in place: every write puts a new one under a new resource version, and all
readers may keep what they were given.
"""

import asyncio
import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

from hack.devnode.api import errors
from hack.devnode.api.registry import Resource

Object = dict[str, Any]


class Key(NamedTuple):
    """Where an object is: its resource's group and plural (versions share storage), its namespace and name."""

    group: str
    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """One write: ``before`` None is a creation, ``after`` None a deletion (``last`` then is what was deleted)."""

    version: int
    key: Key
    before: Object | None
    after: Object | None
    last: Object


def key_of(resource: Resource, *, namespace: str, name: str) -> Key:
    """Return the key of an object; cluster-scoped objects have no namespace."""
    return Key(resource.group, resource.plural, namespace if resource.namespaced else "", name)


class Store:
    """All objects, and the last ``history`` changes to them."""

    def __init__(self, *, history: int = 10_000) -> None:
        self._objects: dict[Key, Object] = {}
        self._history: collections.deque[Change] = collections.deque(maxlen=history)
        self._changed = asyncio.Event()
        self._oldest = 1
        self.version = 1

    def get(self, key: Key) -> Object | None:
        """Return an object, or None."""
        return self._objects.get(key)

    def select(self, resource: Resource, *, namespace: str) -> list[Object]:
        """Return the objects of a resource, in one namespace or ("") in all, sorted as etcd sorts them."""
        return [
            self._objects[key]
            for key in sorted(self._objects)
            if (key.group, key.plural) == (resource.group, resource.plural) and namespace in ("", key.namespace)
        ]

    def put(self, key: Key, obj: Object) -> Object:
        """Write an object under a new version and return it as it was written."""
        before = self._objects.get(key)
        written = self._stamped(obj)
        self._objects[key] = written
        self._record(Change(self.version, key, before=before, after=written, last=written))
        return written

    def remove(self, key: Key) -> Object:
        """Delete an object and return its last state, under the version of the deletion."""
        before = self._objects.pop(key)
        last = self._stamped(before)
        self._record(Change(self.version, key, before=before, after=None, last=last))
        return last

    def after(self, version: int) -> list[Change]:
        """Return the changes after a version. Raises ApiError 410 when they are not remembered any more."""
        if version < self._oldest or version > self.version:
            raise errors.expired(version, self._oldest)
        return [change for change in self._history if change.version > version]

    async def wait(self, version: int) -> None:
        """Wait until there is something after ``version``."""
        while self.version <= version:
            changed = self._changed
            await changed.wait()

    def compact(self) -> None:
        """Forget the history, as etcd's compaction does."""
        self._history.clear()
        self._oldest = self.version

    def _stamped(self, obj: Object) -> Object:
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    def _record(self, change: Change) -> None:
        if len(self._history) == self._history.maxlen:
            self._oldest = self._history[0].version
        self._history.append(change)
        self._changed.set()
        self._changed = asyncio.Event()
