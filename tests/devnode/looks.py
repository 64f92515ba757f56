"""Control when kubelet lists the runtime: a CRI proxy between kubelet and containerd that can hold and release relists.

A look is PLEG's relist (pkg/kubelet/pleg/generic.go): once a second kubelet lists all sandboxes, then all containers,
then reads the changes; its pod workers decide by nothing else. Both lists come without a filter. Kubelet's housekeeping
filters by state, and its garbage collection, once a minute, lists all sandboxes after all containers: that order
distinguishes it from a relist.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Self

from hack.devnode import layout
from hack.devnode.criproxy import Call, CriProxy, When

CHANGES = frozenset({"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"}) | {
    f"{verb}Container" for verb in ("Create", "Start", "Stop", "Remove")
}
"""Calls by which kubelet acts on a relist."""

NO_COLLECTION: Final = ("--minimum-container-ttl-duration=1h",)
"""Kubelet's flags for a node without garbage collection of containers.

It comes once a minute, independent of held relists, and removes reservations (``agent.restart.reservations``).
"""

_SECONDS = 60.0
_MOST_LOOKS = 10  # a pod that kubelet restarts repeatedly never becomes quiet


class Looks:
    """A hook of the proxy in front of kubelet. Until ``hold`` kubelet relists freely."""

    def __init__(self, proxy: CriProxy) -> None:
        self.proxy = proxy
        self._changed = asyncio.Condition()
        self._held = False
        self._waiting = 0
        self._arrivals = 0
        self._round = 0
        self._has_listed = False
        self._changes = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, where: layout.NodeLayout) -> AsyncIterator[Self]:
        """Serve CRI for the node's kubelet, which must be started with ``kubelet_config``."""
        socket = where.root.with_name(f".{where.root.name}.cri")
        async with CriProxy(upstream=where.containerd_socket, socket=socket) as proxy:
            made = cls(proxy)
            proxy.hooks.append(made)
            yield made

    @property
    def kubelet_config(self) -> Mapping[str, Any]:
        """Return the kubelet configuration that directs its calls here."""
        return {"containerRuntimeEndpoint": f"unix://{self.proxy.socket}"}

    async def hold(self) -> None:
        """Hold kubelet's relists; returns when the next one has begun and waits. Raises TimeoutError."""
        self._held = True
        await self._until(lambda: self._waiting > 0)

    async def release(self) -> None:
        """Let kubelet relist freely."""
        async with self._changed:
            self._held = False
            self._changed.notify_all()

    async def glance(self) -> None:
        """Let kubelet relist once; returns when it begins to read the changes. Raises TimeoutError."""
        while True:
            arrivals = await self._let_through()
            await self._until(functools.partial(self._has_listed_or_come, arrivals))
            if self._has_listed:  # otherwise that was its garbage collection
                return

    async def look(self) -> None:
        """Let kubelet relist once; returns when the next relist has begun and waits. Raises TimeoutError.

        It has seen everything by then, and may still be acting on that.
        """
        await self.glance()
        await self._until(lambda: self._waiting > 0)

    async def relist(self) -> None:
        """Let kubelet relist until it changes nothing any more as a result.

        Raises TimeoutError.
        """
        for _ in range(_MOST_LOOKS):
            before = self._changes
            await self.look()
            if self._changes == before and not any(self.proxy.in_flight[method] for method in CHANGES):
                return

    async def _let_through(self) -> int:
        """Let the waiting relist pass; return how often kubelet had come by then."""
        assert self._held, "hold kubelet before a single relist"
        await self._until(lambda: self._waiting > 0)
        async with self._changed:
            self._has_listed = False
            self._round += 1
            self._changed.notify_all()
            return self._arrivals

    def _has_listed_or_come(self, arrivals: int) -> bool:
        return self._has_listed or self._arrivals > arrivals

    async def __call__(self, call: Call, when: When) -> None:
        """Hold the first call of a relist."""
        if when is not When.BEFORE:
            return
        if call.method in CHANGES:
            self._changes += 1
        elif call.method == "ListContainers" and _lists_all(call):
            async with self._changed:
                self._has_listed = True
                self._changed.notify_all()
        elif call.method == "ListPodSandbox" and _lists_all(call):
            await self._pass()

    async def _pass(self) -> None:
        async with self._changed:
            arrived_in = self._round
            self._arrivals += 1
            self._waiting += 1
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: not self._held or self._round > arrived_in)
            finally:
                self._waiting -= 1

    async def _until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(_SECONDS), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError as error:
            raise TimeoutError(f"kubelet did not list the runtime within {_SECONDS:g} s") from error


def _lists_all(call: Call) -> bool:
    return not call.request.filter.ByteSize()
