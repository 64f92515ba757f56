"""The names of Services or claims: labelled ones from their Informer, others from writes that found them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common.kube import informer
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.plan import ClaimSpec

_FOUND_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Named:
    """A Service or a claim, with the name of its JobSet."""

    namespace: str
    name: str
    jobset: str


def named(obj: Mapping[str, Any]) -> Named:
    """Return the relevant fields of a Service or a claim."""
    meta = obj["metadata"]
    return Named(meta["namespace"], meta["name"], meta["labels"][naming.JOBSET_NAME])


class Names:
    """Names from the Informer of one resource, and those found otherwise."""

    def __init__(self, watch: informer.Informer[Named], *, gone: Callable[[str, str], None]) -> None:
        """``gone`` is called with namespace and name of the JobSet of a deleted object.

        Not with its UID: an object that a deleted JobSet leaves may block a new one of the same name.
        """
        self.watch = watch
        self._gone = gone
        self._names: dict[tuple[str, str], str] = {}  # with the object's UID
        self._found: dict[tuple[str, str], float] = {}  # expiry (loop time); the one that was found last comes last
        self._specs: dict[tuple[str, str], ClaimSpec] = {}
        watch.subscribe(self._apply)

    def has(self, namespace: str, name: str) -> bool:
        """Return whether an object of that name exists, as far as it is known."""
        key = (namespace, name)
        if key in self._names:
            return True
        return self._found.get(key, float("-inf")) > asyncio.get_running_loop().time()

    def spec(self, namespace: str, name: str) -> ClaimSpec | None:
        """Return the spec of a claim of that name, as far as it is known."""
        return self._specs.get((namespace, name)) if self.has(namespace, name) else None

    def found(self, namespace: str, name: str, *, spec: ClaimSpec | None = None) -> None:
        """Assume for some time that it exists: it may have been created without the label."""
        now = asyncio.get_running_loop().time()
        self._forget_expired(now)
        key = (namespace, name)
        self._found.pop(key, None)
        self._found[key] = now + _FOUND_SECONDS
        if spec is not None:
            self._specs[key] = spec

    def _forget_expired(self, now: float) -> None:
        """Forget what was found long ago: no Informer reports the end of an object without the label."""
        while self._found and self._found[key := next(iter(self._found))] <= now:
            del self._found[key]
            if key not in self._names:
                self._specs.pop(key, None)

    def _apply(self, change: informer.Change[Named]) -> None:
        key = (change.value.namespace, change.value.name)
        if change.kind is not ChangeKind.GONE:
            self._names[key] = change.uid
            self._specs.pop(key, None)  # it may be a new object
        elif self._names.get(key) == change.uid:
            del self._names[key]
            self._found.pop(key, None)
            self._specs.pop(key, None)
            self._gone(change.value.namespace, change.value.jobset)
