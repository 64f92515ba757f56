"""Keep the nodes' addresses in a NetworkPolicy, so that of all pods and hosts only nodes reach the hub's port.

Agents are on the nodes' network (hostNetwork), which no selector of a NetworkPolicy matches, so their addresses must be
listed. The leader writes the ``ingress`` of one existing policy (daemonset/hub-from-nodes) and never creates one.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import structlog

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths
from kubemend.controller.hub import ports

log = structlog.get_logger(__name__)

MOST_BLOCKS: Final = 10_000
"""Blocks in one policy: half a megabyte. The API server takes objects of up to 1.5 MiB."""
_PORT: Final = "hub"
_REFRESH: Final = 600.0
_HINT: Final = "New nodes' agents may have no hub. See `Connections of the hub` in docs/operations.md."


class NodePolicy:
    """Keeps one policy. ``run`` does the work, in the leader only."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        nodes: ports.Nodes,
        namespace: str,
        name: str,
        report: Callable[[ComponentStatus], None],
        pause: float = 1.0,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``pause``: seconds between two writes; nodes often come in groups."""
        self._api = api
        self._nodes = nodes
        self._path = paths.one("networkpolicies", name, namespace=namespace, group="networking.k8s.io")
        self._report = report
        self._pause = pause
        self._backoff = backoff or aio.Backoff(first=1.0, limit=60.0)

    async def run(self) -> None:
        """Write the policy whenever addresses change, and every ten minutes, in case it was changed; never returns."""
        changed = asyncio.Event()
        unsubscribe = self._nodes.subscribe(lambda _: changed.set())
        written: list[str] | None = None
        try:
            await self._nodes.wait_synced()
            while True:
                changed.clear()
                wanted = blocks(view.addresses for view in self._nodes.views())
                if wanted != written:
                    written = wanted if await self._write(wanted) else None
                if written is None:
                    await self._backoff.wait()
                    continue
                self._backoff.reset()
                await asyncio.sleep(self._pause)
                try:
                    async with asyncio.timeout(_REFRESH):
                        await changed.wait()
                except TimeoutError:
                    written = None
        finally:
            unsubscribe()

    async def _write(self, wanted: list[str]) -> bool:
        if len(wanted) > MOST_BLOCKS:
            what = f"the nodes have {len(wanted)} blocks of addresses, more than {MOST_BLOCKS}: the policy is not kept"
            self._report(ComponentStatus(ComponentState.DEGRADED, what, _HINT))
            return False
        try:
            await self._api.patch(self._path, {"spec": {"ingress": ingress(wanted)}}, content_type=client.Patch.MERGE)
        except errors.KubeError as error:
            self._report(ComponentStatus(ComponentState.DEGRADED, f"the policy is not kept: {error}", _HINT))
            return False
        log.info("hub.policy_written", blocks=len(wanted))
        self._report(ComponentStatus(ComponentState.READY, f"{len(wanted)} blocks of addresses"))
        return True


def ingress(cidrs: list[str]) -> list[dict[str, Any]]:
    """Return the policy's rules. Pure. Without addresses there is none: a rule without peers would admit all."""
    if not cidrs:
        return []
    return [{"from": [{"ipBlock": {"cidr": each}} for each in cidrs], "ports": [{"port": _PORT}]}]


def blocks(addresses: Iterable[Iterable[str]]) -> list[str]:
    """Return the fewest blocks that contain exactly these addresses, sorted. Pure."""
    every = {ipaddress.ip_network(each) for of_node in addresses for each in of_node}
    return [*_collapsed(each for each in every if each.version == 4), *_collapsed(e for e in every if e.version == 6)]


def _collapsed(networks: Iterable[Any]) -> Iterator[str]:
    return map(str, ipaddress.collapse_addresses(networks))
