"""A node's place in another node's containerd: several nodes on one machine need not have one each."""

import asyncio
import types
from typing import Self

from hack.devnode import claims, layout, leftovers
from hack.devnode.containerd import Containerd


class Guest:
    """Has the node's surroundings for the length of an ``async with`` block; its end removes the node's own pods.

    Those are the pods that its kubelet has a directory of.
    """

    def __init__(self, node: layout.NodeLayout, containerd: Containerd) -> None:
        self._node = node
        self._containerd = containerd
        self._claim = claims.Claim(node)

    async def __aenter__(self) -> Self:
        """Raises claims.NodeInUseError."""
        self._claim.take()
        try:
            await leftovers.reap(self._node)
            await asyncio.to_thread(self._prepare)
        except BaseException:
            self._claim.give_back()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        try:
            await self._containerd.remove_pods(lambda uid: self._node.pod_dir(uid).exists())
            await leftovers.reap(self._node)
        finally:
            self._claim.give_back()

    def _prepare(self) -> None:
        node = self._node
        for folder in (node.pod_logs, node.container_log_links, node.kubelet_root):
            folder.mkdir(parents=True, exist_ok=True)
