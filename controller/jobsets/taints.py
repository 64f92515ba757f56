"""Taint nodes that members have left because of a device, until the node's agent finds all devices healthy.

Only the few affected nodes are read, one by one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.jobset.placement.device_taints import DeviceFault, NodeState
from kubemend.controller.jobset.spec import fields

log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 15.0
_FAULTS_KEPT: Final = 1000


class Taints:
    """Keep the taints. ``fault`` records that a pod leaves a node, ``run`` adds and removes taints."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        tainted: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.time,
        period: float = _PERIOD_SECONDS,
    ) -> None:
        """``tainted`` returns the nodes with kubemend's taint, ``clock`` gives Unix time, ``period`` is in seconds."""
        self._api = api
        self._tainted = tainted
        self._clock = clock
        self._period = period
        self._backoff = aio.Backoff(first=0.05, limit=period)
        self._faults: dict[tuple[str, str], DeviceFault] = {}
        self._invalid: set[str] = set()
        self._news = asyncio.Event()

    def fault(self, node: str, *, code: str, pod: str) -> None:
        """Record that a pod is recreated because of a device of this node. Repeating it has no effect."""
        if (node, pod) in self._faults or not node:
            return
        while len(self._faults) >= _FAULTS_KEPT:
            del self._faults[next(iter(self._faults))]
        self._faults[node, pod] = DeviceFault(node, self._clock(), code)
        self._news.set()

    async def run(self) -> None:
        """Reconcile the nodes indefinitely."""
        try:
            while True:
                self._news.clear()
                names = sorted({each.node for each in self._faults.values()} | {*self._tainted()})
                done = [await self._reconcile_contained(name) for name in names]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause(all_done=all(done))):
                        await self._news.wait()
        finally:
            self._faults.clear()
            self._invalid.clear()

    def _pause(self, *, all_done: bool) -> float:
        """Return for how many seconds to wait for a change."""
        if not all_done:
            return self._backoff.next_wait()
        self._backoff.reset()
        return self._period

    async def _reconcile_contained(self, name: str) -> bool:
        with contained.within(contained.Part.NODE, name):
            return await self._reconcile(name)
        return True

    async def _reconcile(self, name: str) -> bool:
        """Reconcile a node; return False if it must be read again soon.

        It changed in between, or the API server did not answer: the pod's replacement is about to be scheduled.
        """
        try:
            await self._keep(name, await self._node(name))
        except errors.ConflictError:
            return False
        except errors.KubeError as error:
            log.warning("node.taint_failed", node=name, error=str(error))
            return not isinstance(error, errors.ApiUnavailableError)
        except fields.InvalidFieldError as error:
            self._log_invalid(name, reason=str(error))
        else:
            self._invalid.discard(name)
        return True

    async def _keep(self, name: str, node: NodeState | None) -> None:
        self._faults = {
            key: each
            for key, each in self._faults.items()
            if each.node != name or not device_taints.is_over(each, node)
        }
        for change in device_taints.changes([node] if node is not None else [], self._faults.values()):
            path = f"{paths.NODES}/{name}"
            await self._api.patch(path, device_taints.patch(change), content_type=client.Patch.MERGE)
            log.info("node.tainted" if isinstance(change, device_taints.AddTaint) else "node.untainted", node=name)

    def _log_invalid(self, name: str, *, reason: str) -> None:
        """Leave a node as it is, and log that once: it is read again regularly."""
        if name not in self._invalid:
            log.warning("node.invalid", node=name, error=reason)
            self._invalid.add(name)

    async def _node(self, name: str) -> NodeState | None:
        """Return a node, by a list, because kubemend has only that right. Raises KubeError, InvalidFieldError.

        A report from the future counts as one of now: the node's clock is ahead, and it may be from before the fault.
        """
        found = await self._api.list(paths.NODES, params={"fieldSelector": f"metadata.name={name}"})
        node = next((device_taints.node(each) for each in found.items), None)
        if node is None or node.healthy_at is None:
            return node
        return replace(node, healthy_at=min(node.healthy_at, self._clock()))
