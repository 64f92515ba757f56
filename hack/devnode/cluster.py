"""Several dev nodes on one machine behind one API server.

With the kubelet stand-in they share the first node's containerd: the stand-ins leave each other's pods alone. A real
kubelet would end pods that it does not know, so with real ones each node has a containerd of its own.
"""

import asyncio
import contextlib
import dataclasses
from types import TracebackType
from typing import Self

from hack.devnode import leftovers, processes
from hack.devnode.layout import NodeLayout
from hack.devnode.node import DevNode, Options


class Cluster:
    """So many dev nodes, for as long as the ``async with`` block runs. The first one has the API server."""

    def __init__(self, where: NodeLayout, *, nodes: int, options: Options | None = None) -> None:
        """``where`` is the first node's layout; the others' are beside it."""
        options = options or Options()
        options = dataclasses.replace(options, real_kubelet=options.wants_real_kubelet)
        self.first = DevNode(where, options=options)
        layouts = [where.neighbour(number, shares_runtime=not options.real_kubelet) for number in range(2, nodes + 1)]
        self.nodes = (self.first, *(DevNode(each, options=options, beside=self.first) for each in layouts))
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all nodes; they are Ready when this returns. Raises the errors of ``DevNode.start``."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.first)
            stack.push_async_callback(self._stop_others)
            async with asyncio.TaskGroup() as tasks:
                for node in self.nodes[1:]:
                    tasks.create_task(node.start(), name=f"start-{node.name}")
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stop all nodes and remove everything of them."""
        await self._stack.aclose()

    def leftovers(self) -> list[str]:
        """Describe what the nodes have left on the machine, one line each."""
        return [line for node in self.nodes for line in leftovers.find(node.layout)]

    def forget(self) -> None:
        """Remove the lock files of nodes whose names nobody uses again."""
        for node in self.nodes:
            node.layout.root.with_name(f".{node.layout.root.name}.lock").unlink(missing_ok=True)

    async def _stop_others(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes[1:]))


async def power_off(node: DevNode) -> None:
    """Have a node die at once: its kubelet and all processes of its pods. The agent is its starter's to kill.

    Nobody tells the API server, as nobody would.
    """
    await node.kubelet.kill()
    inside = f"{node.layout.cgroup_parent}/"
    while members := [
        each for each in processes.running() if any(path.startswith(inside) for path in processes.cgroups(each.pid))
    ]:
        await processes.terminate(members, grace=0)
