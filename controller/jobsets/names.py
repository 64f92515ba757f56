"""Which Services or claims there are: those with JobSet's label by their watch, others where we met them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from common.kube import mirror
from controller.jobset import naming
from controller.jobset.plan import ClaimSpec

_FOUND_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Named:
    """A Service or a claim, with the name of its JobSet."""

    namespace: str
    name: str
    jobset: str


def named(obj: Mapping[str, Any]) -> Named:
    """Return what matters of a Service or a claim."""
    meta = obj["metadata"]
    return Named(meta["namespace"], meta["name"], meta["labels"][naming.JOBSET_NAME])


class Names:
    """Follows the mirror of one resource, and is told what we met."""

    def __init__(self, watch: mirror.Mirror[Named], *, gone: Callable[[str, str], None]) -> None:
        """``gone`` hears of namespace and name of a JobSet whose object is no more.

        Not by its UID: what a deleted JobSet leaves may be in the way of one that was made anew under its name.
        """
        self.watch = watch
        self._gone = gone
        self._names: dict[tuple[str, str], str] = {}  # with the object's UID
        self._found: dict[tuple[str, str], float] = {}  # until when (loop time)
        self._specs: dict[tuple[str, str], ClaimSpec] = {}
        watch.subscribe(self._take)

    def has(self, namespace: str, name: str) -> bool:
        """Whether there is one of that name, as far as is known."""
        key = (namespace, name)
        if key in self._names:
            return True
        return self._found.get(key, float("-inf")) > asyncio.get_running_loop().time()

    def spec(self, namespace: str, name: str) -> ClaimSpec | None:
        """Return what a claim of that name is, as far as is known."""
        return self._specs.get((namespace, name)) if self.has(namespace, name) else None

    def found(self, namespace: str, name: str, *, spec: ClaimSpec | None = None) -> None:
        """Believe for a while that it is there: somebody may have made it without the label."""
        key = (namespace, name)
        self._found[key] = asyncio.get_running_loop().time() + _FOUND_SECONDS
        if spec is not None:
            self._specs[key] = spec

    def _take(self, change: mirror.Change[Named]) -> None:
        key = (change.value.namespace, change.value.name)
        if change.kind is not mirror.ChangeKind.GONE:
            self._names[key] = change.uid
            self._specs.pop(key, None)  # it may be another one by now
        elif self._names.get(key) == change.uid:
            del self._names[key]
            self._found.pop(key, None)
            self._specs.pop(key, None)
            self._gone(change.value.namespace, change.value.jobset)
