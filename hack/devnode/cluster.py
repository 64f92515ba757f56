"""Run several dev nodes on one machine with one API server, each with a kubelet and a containerd of its own."""

import asyncio
import contextlib

from hack.devnode import apiserver, cgroups, leftovers, processes
from hack.devnode.layout import NodeLayout
from hack.devnode.node import DevNode, Options
from hack.devnode.part import Part
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths


class Cluster(Part):
    """Run ``nodes`` dev nodes for the length of the ``async with`` block.

    ``api`` is an API server to use, as for a ``DevNode``; None: the first one has it.
    """

    def __init__(
        self,
        where: NodeLayout,
        *,
        nodes: int,
        options: Options | None = None,
        api: apiserver.KubeApiServer | None = None,
    ) -> None:
        """``where`` is the first node's layout; the others are its neighbours."""
        self.first = DevNode(where, options=options, api=api)
        layouts = [where.neighbour(number) for number in range(2, nodes + 1)]
        self.nodes = (self.first, *(DevNode(each, options=options, api=self.first.api) for each in layouts))
        self._stack = contextlib.AsyncExitStack()

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
        """Describe the remains of the nodes on the machine, one line each."""
        return [line for node in self.nodes for line in leftovers.find(node.layout)]

    def forget(self) -> None:
        """Remove the lock files of nodes whose names will not be used again."""
        for node in self.nodes:
            node.layout.root.with_name(f".{node.layout.root.name}.lock").unlink(missing_ok=True)

    async def _stop_others(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes[1:]))


async def power_off(node: DevNode) -> None:
    """Make a node fail abruptly: its kubelet and all processes of its pods. The caller kills the agent.

    The API server is not notified, as in a real failure.
    """
    await node.kubelet.kill()
    inside = f"{cgroups.path(node.layout.cgroup_parent)}/"
    while members := [
        each for each in processes.running() if any(path.startswith(inside) for path in processes.cgroups(each.pid))
    ]:
        await processes.terminate(members, grace=0)


async def power_on(api: kube.KubeClient, node: DevNode) -> None:
    """Start a node that has failed again, without its agent, and take it back into service."""
    await node.kubelet.start()
    await api.patch(f"{paths.NODES}/{node.name}", {"spec": {"taints": None}})


async def out_of_service(api: kube.KubeClient, name: str) -> None:
    """Mark a node as the node controller marks a silent one, and as its operator does (KEP-2268)."""
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    await api.patch_status(f"{paths.NODES}/{name}", {"status": {"conditions": [ready]}})
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    await api.patch(f"{paths.NODES}/{name}", {"spec": {"taints": [taint]}})
