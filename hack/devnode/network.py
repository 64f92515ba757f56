"""Manage the dev node's bridge."""

import json
import subprocess

from hack.devnode import layout

_SECONDS = 30.0


class NetworkError(RuntimeError):
    """iproute2 failed. The message is one line for people."""


def ensure_bridge(node: layout.NodeLayout) -> None:
    """Create the node's bridge with this machine's address on it. Raises NetworkError, for example as non-root."""
    if not bridge_exists(node):
        _ip("link", "add", node.bridge, "type", "bridge")
    prefix = node.subnet.rpartition("/")[2]
    _ip("address", "replace", f"{node.gateway}/{prefix}", "dev", node.bridge)
    _ip("link", "set", node.bridge, "up")


def add_address(node: layout.NodeLayout, address: str) -> None:
    """Give this machine one more address, on the node's bridge; it is removed with the bridge. Raises NetworkError."""
    _ip("address", "replace", f"{address}/32", "dev", node.bridge)


def delete_bridge(node: layout.NodeLayout) -> None:
    """Delete the bridge and the host's ends of the links in it; a missing bridge is no error."""
    if not bridge_exists(node):
        return
    for port in json.loads(_ip("-json", "link", "show", "master", node.bridge) or "[]"):
        _delete(port["ifname"])
    _delete(node.bridge)


def _delete(link: str) -> None:
    """Delete a link. The kernel may do that first: a pod's link ends with its network namespace."""
    try:
        _ip("link", "delete", link)
    except NetworkError:
        if any(found.get("ifname") == link for found in json.loads(_ip("-json", "link", "show"))):
            raise


def bridge_exists(node: layout.NodeLayout) -> bool:
    """Return whether the node's bridge exists."""
    return any(link.get("ifname") == node.bridge for link in json.loads(_ip("-json", "link", "show", "type", "bridge")))


def _ip(*arguments: str) -> str:
    try:
        return subprocess.run(("ip", *arguments), capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except FileNotFoundError:
        raise NetworkError("no program 'ip'; apt-get install iproute2") from None
    except subprocess.CalledProcessError as error:
        raise NetworkError(f"ip {' '.join(arguments)}: {error.stderr.strip()}; the dev node needs root") from error
    except subprocess.TimeoutExpired:
        raise NetworkError(f"ip {' '.join(arguments)} did not end within {_SECONDS:g} s") from None
