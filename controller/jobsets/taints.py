"""Keeps new pods off nodes that members have left for a device's sake: a taint, until the node's agent finds it whole.

Only the few nodes that this is about are asked about, one by one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from common.kube import client, errors, paths
from controller.jobset import keeping_off
from controller.jobset.keeping_off import DeviceFault, NodeState

log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 15.0
_FAULTS_KEPT: Final = 1000


class Taints:
    """``fault`` says who has left a node, ``run`` taints and lifts taints."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        tainted: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.time,
        period: float = _PERIOD_SECONDS,
    ) -> None:
        """``tainted`` returns the nodes that have our taint, ``clock`` Unix seconds, ``period`` is in seconds."""
        self._api = api
        self._tainted = tainted
        self._clock = clock
        self._period = period
        self._faults: dict[tuple[str, str], DeviceFault] = {}
        self._news = asyncio.Event()

    def fault(self, node: str, *, code: str, pod: str) -> None:
        """A pod is recreated for a device of this node. Said again it changes nothing."""
        if (node, pod) in self._faults or not node:
            return
        while len(self._faults) >= _FAULTS_KEPT:
            del self._faults[next(iter(self._faults))]
        self._faults[node, pod] = DeviceFault(node, self._clock(), code)
        self._news.set()

    async def run(self) -> None:
        """Keep nodes as they should be, for ever."""
        try:
            while True:
                self._news.clear()
                for name in sorted({each.node for each in self._faults.values()} | {*self._tainted()}):
                    await self._look(name)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period):
                        await self._news.wait()
        finally:
            self._faults.clear()

    async def _look(self, name: str) -> None:
        try:
            node = await self._node(name)
            self._faults = {
                key: each
                for key, each in self._faults.items()
                if each.node != name or not keeping_off.is_over(each, node)
            }
            for change in keeping_off.changes([node] if node is not None else [], self._faults.values()):
                path = f"{paths.NODES}/{name}"
                await self._api.patch(path, keeping_off.patch(change), content_type=client.Patch.MERGE)
                log.info("node.kept_off" if isinstance(change, keeping_off.KeepOff) else "node.let_back", node=name)
        except errors.ConflictError:
            self._news.set()  # it has changed meanwhile
        except errors.KubeError as error:
            log.warning("node.not_kept_off", node=name, error=str(error))

    async def _node(self, name: str) -> NodeState | None:
        """Return a node. It is listed, for ``list`` is all that we may."""
        found = await self._api.list(paths.NODES, params={"fieldSelector": f"metadata.name={name}"})
        return next((keeping_off.node(each) for each in found.items), None)
