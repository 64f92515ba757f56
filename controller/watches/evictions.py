"""The pods whose eviction is requested (EvictionRequest, KEP-4563), where the API server has these objects.

Kubernetes 1.37 has them as alpha (``lifecycle.k8s.io/v1alpha1``), if that is enabled.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, informer, paths, shares
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.model.members import PodUid

_LOOK_AGAIN: Final = 600.0
"""Seconds after which an API server without these objects is asked again: an administrator may enable an alpha API."""
_OVER: Final = frozenset({"Failed", "TargetEvicted"})
"""The conditions of a request that was met, cancelled or given up."""
_NOT_SERVED: Final = ComponentStatus(ComponentState.IDLE, "the API server serves no EvictionRequests")


class Target(NamedTuple):
    """A pod whose eviction is requested. A request reaches only its own namespace."""

    namespace: str
    uid: PodUid


_NONE: Final = Target("", PodUid(""))


class Evictions:
    """Keep the pods whose eviction is requested. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        backoff: aio.Backoff | None = None,
        look_again: float = _LOOK_AGAIN,
    ) -> None:
        """``look_again`` is in seconds."""
        self._report = report
        self._look_again = look_again
        self._requests: dict[str, Target] = {}  # by the request's UID
        self._count: Counter[Target] = Counter()
        self._listeners: list[Callable[[Target], None]] = []
        self._informer: informer.Informer[Target] = informer.Informer(
            api=api,
            path=paths.collection("evictionrequests", group="lifecycle.k8s.io", version="v1alpha1"),
            reduce=target,
            report=report,
            backoff=backoff,
            bounds=shares.Bounds(lambda _: _NONE, one=1_000, namespace=1_000_000, total=8_000_000),
            optional=True,
        )
        self._informer.subscribe(self._apply)

    def requested(self, pod: Target) -> bool:
        """Return whether a request for a pod's eviction is open."""
        return pod in self._count

    def subscribe(self, listener: Callable[[Target], None]) -> None:
        """Call ``listener`` with each pod for which ``requested`` has changed; it must not block."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Keep the view current indefinitely."""
        while True:
            with contextlib.suppress(errors.NotFoundError):
                await self._informer.run()
            self._report(_NOT_SERVED)
            await asyncio.sleep(self._look_again)

    def _apply(self, change: informer.Change[Target]) -> None:
        self._set(change.uid, None if change.kind is ChangeKind.GONE else change.value)

    def _set(self, request: str, pod: Target | None) -> None:
        before = self._requests.pop(request, None)
        if pod is not None:
            self._requests[request] = pod
            self._count[pod] += 1
        if before is not None:
            self._count[before] -= 1
            if not self._count[before]:
                del self._count[before]
        for each in {before, pod} - {None}:
            assert each is not None
            for listener in self._listeners:
                listener(each)


def target(request: Mapping[str, Any]) -> Target | None:
    """Return the pod of a v1alpha1 EvictionRequest; None if it is withdrawn, deleted or over, or names no pod."""
    spec = request["spec"]
    conditions = (request.get("status") or {}).get("conditions") or ()
    over = any(each["type"] in _OVER and each["status"] == "True" for each in conditions)
    pod = (spec["target"] or {}).get("pod")
    if spec["intent"] != "Eviction" or over or not pod or request["metadata"].get("deletionTimestamp"):
        return None
    return Target(str(request["metadata"]["namespace"]), PodUid(str(pod["uid"])))
