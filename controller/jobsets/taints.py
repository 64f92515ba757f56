"""Keeps new pods off nodes that members have left for a device's sake: a taint, until the node's agent finds it whole.

Only the few nodes that this is about are asked about, one by one.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from common import aio, contained
from common.kube import client, errors, paths
from controller.jobset import fields, keeping_off
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
        self._backoff = aio.Backoff(first=0.05, limit=period)
        self._faults: dict[tuple[str, str], DeviceFault] = {}
        self._not_understood: set[str] = set()
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
                names = sorted({each.node for each in self._faults.values()} | {*self._tainted()})
                done = [await self._look_alone(name) for name in names]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause(all_done=all(done))):
                        await self._news.wait()
        finally:
            self._faults.clear()
            self._not_understood.clear()

    def _pause(self, *, all_done: bool) -> float:
        """Return for how many seconds to wait for news."""
        if not all_done:
            return self._backoff.next_wait()
        self._backoff.reset()
        return self._period

    async def _look_alone(self, name: str) -> bool:
        with contained.within(contained.Part.NODE, name):
            return await self._look(name)
        return True

    async def _look(self, name: str) -> bool:
        """Do what is to be done about a node; return False when it has changed meanwhile: it is looked at again."""
        try:
            await self._keep(name, await self._node(name))
        except errors.ConflictError:
            return False
        except errors.KubeError as error:
            log.warning("node.not_kept_off", node=name, error=str(error))
        except fields.NotUnderstoodError as error:
            self._pass_over(name, why=str(error))
        else:
            self._not_understood.discard(name)
        return True

    async def _keep(self, name: str, node: NodeState | None) -> None:
        self._faults = {
            key: each for key, each in self._faults.items() if each.node != name or not keeping_off.is_over(each, node)
        }
        for change in keeping_off.changes([node] if node is not None else [], self._faults.values()):
            path = f"{paths.NODES}/{name}"
            await self._api.patch(path, keeping_off.patch(change), content_type=client.Patch.MERGE)
            log.info("node.kept_off" if isinstance(change, keeping_off.KeepOff) else "node.let_back", node=name)

    def _pass_over(self, name: str, *, why: str) -> None:
        """Leave a node as it is, and say so once: it is looked at again and again."""
        if name not in self._not_understood:
            log.warning("node.not_understood", node=name, error=why)
            self._not_understood.add(name)

    async def _node(self, name: str) -> NodeState | None:
        """Return a node. It is listed, for ``list`` is all that we may. Raises KubeError, NotUnderstoodError."""
        found = await self._api.list(paths.NODES, params={"fieldSelector": f"metadata.name={name}"})
        return next((keeping_off.node(each) for each in found.items), None)
