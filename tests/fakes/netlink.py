"""Fake the kernel's netlink, message by message in the kernel's own format.

The messages are built by pyroute2's encoder: the agent parses a part of them by hand, and that hand must not also
define the format. ``tests/contract/network`` runs on this and on real links alike.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from kubemend.agent.sources.network import netlink
from kubemend.agent.sources.network.netlink import Link
from kubemend.agent.sources.network.reader import Reader
from kubemend.agent.sources.network.sockets import Listener, OverflowedError

_NEWLINK, _DELLINK = 16, 17
_AF_BRIDGE = 7
_FLAGS_UP, _FLAGS_CARRIER = 0x1, 0x40 | 0x1_0000


def link_message(link: Link, *, bridge: bool = False) -> bytes:
    """Return the kernel's message about a link; with ``bridge`` the one about its membership in a bridge."""
    message = ifinfmsg()
    message["header"]["type"] = _DELLINK if link.gone else _NEWLINK
    message["family"] = _AF_BRIDGE if bridge else 0
    message["index"] = link.index
    message["flags"] = _FLAGS_UP * link.admin_up | _FLAGS_CARRIER * link.up
    attributes: list[tuple[str, Any]] = [("IFLA_IFNAME", link.name), ("IFLA_MTU", 1500)]
    if link.losses is not None:
        attributes.append(("IFLA_CARRIER_DOWN_COUNT", link.losses))
    message["attrs"] = attributes
    message.reset()
    message.encode()
    return bytes(message.data)


def uevent_message(action: str, path: str, subsystem: str) -> bytes:
    """Return the kernel's message about a device."""
    lines = [f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}", "SEQNUM=4711"]
    return "\0".join((*lines, "")).encode()


class FakeListener(Listener):
    """Receive the fake kernel's messages, in order; ``None`` is an overflow."""

    def __init__(self) -> None:
        self._said: list[bytes | OSError | None] = []
        self._news = asyncio.Event()
        self.closed = False

    def hear(self, message: bytes | OSError | None) -> None:
        self._said.append(message)
        self._news.set()

    async def wait(self) -> None:
        await self._news.wait()

    def read(self) -> Iterator[bytes]:
        self._news.clear()
        while self._said:
            message = self._said.pop(0)
            if message is None:
                raise OverflowedError
            if isinstance(message, OSError):
                raise message
            yield message

    def close(self) -> None:
        self.closed = True


class FakeKernel:
    """Links of a network namespace, and their listeners."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.link_listeners: list[FakeListener] = []
        self.uevent_listeners: list[FakeListener] = []
        self.refusal: OSError | None = None
        self.netns: Path | None = None
        self._indexes = itertools.count(2)

    def reader(self, *args: Any, **kwargs: Any) -> Reader:
        """Create the listener that the source requests."""
        return FakeReader(self, *args, **kwargs)

    def add(self, name: str, *, up: bool = True, admin_up: bool = True, losses: int | None = 0) -> None:
        self._say(Link(name, next(self._indexes), admin_up=admin_up, up=up, losses=losses))

    def carrier(self, name: str, *, up: bool) -> None:
        link = self.links[name]
        lost = link.losses + (link.up and not up) if link.losses is not None else None
        self._say(dataclasses.replace(link, up=up, losses=lost))

    def admin(self, name: str, *, up: bool) -> None:
        link = self.links[name]  # the carrier goes with it, in one message
        lost = link.losses + (link.up and not up) if link.losses is not None else None
        self._say(dataclasses.replace(link, admin_up=up, up=up, losses=lost))

    def flap(self, name: str, times: int) -> None:
        """Lose the carrier so fast that the kernel counts it and reports only the final state."""
        link = self.links[name]
        self._say(dataclasses.replace(link, losses=(link.losses or 0) + times))

    def remove(self, name: str) -> None:
        self._say(dataclasses.replace(self.links[name], gone=True))

    def leave_bridge(self, name: str) -> None:
        """Send the kernel's message for a link that leaves a bridge: as for a deletion, but of another family."""
        for listener in self.link_listeners:
            listener.hear(link_message(dataclasses.replace(self.links[name], gone=True), bridge=True))

    def flood(self, name: str) -> None:
        """Send more than a listener can read: it learns only that messages were lost."""
        for listener in self.link_listeners:
            listener.hear(None)

    def uevent(self, action: str, path: str, subsystem: str) -> None:
        for listener in self.uevent_listeners:
            listener.hear(uevent_message(action, path, subsystem))

    def _say(self, link: Link) -> None:
        self.links.pop(link.name, None)
        if not link.gone:
            self.links[link.name] = link
        for listener in self.link_listeners:
            listener.hear(link_message(link))


class FakeReader(Reader):
    """Read sysfs as the real one does, and receive the fake kernel's messages."""

    def __init__(self, kernel: FakeKernel, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kernel = kernel

    async def listen_to_links(self) -> Listener:
        return self._listener(self._kernel.link_listeners)

    async def listen_to_uevents(self) -> Listener:
        return self._listener(self._kernel.uevent_listeners)

    async def links(self) -> tuple[Link, ...]:
        raws = [raw for link in self._kernel.links.values() for raw in netlink.raw_links(link_message(link))]
        return self._decoded(raws)

    def _listener(self, listeners: list[FakeListener]) -> Listener:
        if self._kernel.refusal is not None:
            raise self._kernel.refusal
        listeners[:] = [FakeListener()]
        return listeners[0]
