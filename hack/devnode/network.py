"""Manage the dev node's bridge by rtnetlink: no program ``ip`` is needed.

Changes are made in a thread without an event loop: pyroute2 runs one of its own.
"""

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any

from hack.devnode import layout


class NetworkError(RuntimeError):
    """The kernel has refused a change of the network. The message is one line for people."""


def ensure_bridge(node: layout.NodeLayout) -> None:
    """Create the node's bridge with this machine's address on it. Raises NetworkError, for example as non-root."""
    with rtnetlink(f"create the bridge {node.bridge}") as route:
        if not bridge_exists(node):
            route.link("add", ifname=node.bridge, kind="bridge")
        _add_address(route, node, node.gateway, prefix=int(node.subnet.rpartition("/")[2]))
        route.link("set", index=_index(node.bridge), state="up")


def add_address(node: layout.NodeLayout, address: str) -> None:
    """Give this machine one more address, on the node's bridge; it is removed with the bridge. Raises NetworkError."""
    with rtnetlink(f"give {node.bridge} the address {address}") as route:
        _add_address(route, node, address, prefix=32)


def delete_bridge(node: layout.NodeLayout) -> None:
    """Delete the bridge and the host's ends of the links in it; a missing bridge is no error. Raises NetworkError."""
    bridge = _index(node.bridge)
    if bridge is None:
        return
    with rtnetlink(f"delete the bridge {node.bridge}") as route:
        ports = [link["index"] for link in route.get_links() if link.get_attr("IFLA_MASTER") == bridge]
        for index in (*ports, bridge):
            _delete(route, index)


def bridge_exists(node: layout.NodeLayout) -> bool:
    """Return whether the node's bridge exists."""
    return _index(node.bridge) is not None


def _add_address(route: Any, node: layout.NodeLayout, address: str, *, prefix: int) -> None:
    route.addr("replace", index=_index(node.bridge), address=address, prefixlen=prefix)


def _delete(route: Any, index: int) -> None:
    """Delete a link. The kernel may do that first: a pod's link ends with its network namespace."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        route.link("del", index=index)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise


def _index(name: str) -> int | None:
    """Return the number of a link; None: there is none of that name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return None


@contextlib.contextmanager
def rtnetlink(what: str) -> Iterator[Any]:
    """Provide the kernel's interface for changes of the network. Raises NetworkError, as the block does.

    They are made in the network namespace of this thread, which must have no event loop.
    """
    from pyroute2 import IPRoute  # a third of a second, and most programs that use a dev node import this module
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as route:
            yield route
    except (NetlinkError, OSError) as error:
        raise NetworkError(f"cannot {what}: {error}; it needs root") from error
