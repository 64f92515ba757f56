"""The nodes, from the API server: ready or not, and whether they are known to be dead."""

import contextlib
import ipaddress
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kubemend.common import aio, contained
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, informer, paths
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.model.members import NodeChange, NodeName, NodeView

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""The taint by which operators mark a node as shut down, so that none of its pods runs (KEP-2268)."""
MAINTENANCE_PLANNED: Final = "MaintenancePlanned"
"""The condition of a node whose maintenance is planned (KEP-5683). Clusters without it have no such condition."""

_PAGE: Final = 100
"""Nodes list their images: up to 50 KB each."""
_ADDRESSES: Final = 8
"""Addresses that are kept of one node. Kubelet reports one of each family, and network plugins add as many."""
_TUNNELS: Final = (
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
)
"""Annotations with the addresses from which a node's processes reach pods through Calico's tunnels."""
_READY: Final[Mapping[str, bool | None]] = {"True": True, "False": False}


class Nodes:
    """Keep the view of nodes. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        backoff: aio.Backoff | None = None,
    ) -> None:
        self._informer: informer.Informer[NodeView] = informer.Informer(
            api=api, path=paths.NODES, reduce=view, report=report, page=_PAGE, backoff=backoff
        )
        self._by_name: dict[NodeName, tuple[str, NodeView]] = {}  # with the object's UID
        self._listeners: list[Callable[[NodeChange], None]] = []
        self._informer.subscribe(self._apply)

    @property
    def synced(self) -> bool:
        """Return whether the nodes have been listed since ``run`` began: before, a missing node has no meaning."""
        return self._informer.synced

    async def wait_synced(self) -> None:
        """Wait until the nodes have been listed."""
        await self._informer.wait_synced()

    def view(self, name: NodeName) -> NodeView | None:
        """Return a node; None if it does not exist."""
        found = self._by_name.get(name)
        return found[1] if found is not None else None

    def views(self) -> list[NodeView]:
        """Return all nodes."""
        return [node for _, node in self._by_name.values()]

    def kept_off(self) -> list[NodeName]:
        """Return the nodes with kubemend's taint."""
        return [name for name, (_, node) in self._by_name.items() if node.kept_off]

    def subscribe(self, listener: Callable[[NodeChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current indefinitely."""
        await self._informer.run()

    def _apply(self, change: informer.Change[NodeView]) -> None:
        name = change.value.name
        if change.kind is not ChangeKind.GONE:
            self._by_name[name] = (change.uid, change.value)
            self._notify(NodeChange(name, change.value))
        elif self._by_name[name][0] == change.uid:  # else it has a successor of the same name already
            del self._by_name[name]
            self._notify(NodeChange(name, None))

    def _notify(self, change: NodeChange) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, change.name):
                listener(change)


def view(node: Mapping[str, Any]) -> NodeView:
    """Return the relevant fields of a v1 Node. Its Ready condition is Unknown if kubelet has not reported for long."""
    conditions = {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}
    spec = node.get("spec") or {}
    taints = spec.get("taints") or ()
    return NodeView(
        name=NodeName(node["metadata"]["name"]),
        ready=_READY.get(conditions.get("Ready", "")),
        out_of_service=any(taint["key"] == OUT_OF_SERVICE for taint in taints),
        kept_off=any(taint["key"] == device_taints.TAINT for taint in taints),
        leaving=conditions.get(MAINTENANCE_PLANNED) == "True" and spec.get("unschedulable") is True,
        addresses=frozenset(itertools.islice(_addresses(node), _ADDRESSES)),
    )


def _addresses(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses from which a node's own processes reach pods on other nodes.

    Without a tunnel these are its internal addresses. Flannel's VXLAN has the first address of the node's pod range,
    which no pod gets.
    """
    reported = (node.get("status") or {}).get("addresses") or ()
    annotations = node["metadata"].get("annotations") or {}
    ranges = (node.get("spec") or {}).get("podCIDRs") or ()
    named = [
        *(each.get("address") for each in reported if each.get("type") == "InternalIP"),
        *(annotations.get(name) for name in _TUNNELS),
        *(str(each).partition("/")[0] for each in ranges),
    ]
    for text in named:
        with contextlib.suppress(ValueError):  # a node reports its own addresses, and may report anything
            address = ipaddress.ip_address(str(text))
            if not _is_local(address):
                yield str(address)


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address means no single host, or is not in the form that the API server takes."""
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return mapped or address.is_unspecified or address.is_loopback or address.is_link_local or address.is_multicast
