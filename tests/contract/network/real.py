"""Provide real links: veth pairs in a network namespace of a thread, which is removed when the thread ends."""

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

from kubemend.agent.sources.network.netlink import Link
from kubemend.agent.sources.network.reader import Reader

T = TypeVar("T")

_CLONE_NEWNET = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def missing() -> str | None:
    """Return why no network namespace can be created here, or None when one can."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(_unshare).result()
        except OSError as error:
            return f"no network namespace can be made here: {error.strerror}"
    return None


def _unshare() -> int:
    """Give this thread a network namespace; return the thread's id."""
    if _libc.unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return threading.get_native_id()


class RealLinks:
    """Links whose far ends a test enables and disables. They are invisible outside."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._elsewhere = ThreadPoolExecutor(1)
        self.netns: Path | None = _namespace(self._thread.submit(_unshare).result())
        self._other = _namespace(self._elsewhere.submit(_unshare).result())
        self._route: IPRoute = self.inside(IPRoute)

    def close(self) -> None:
        """End the namespaces, and all links in them."""
        self.inside(self._route.close)
        self._thread.shutdown()
        self._elsewhere.shutdown()

    def inside(self, work: Callable[[], T]) -> T:
        """Do something in the namespace, while the caller waits."""
        return self._thread.submit(work).result()

    def reader(self, *args: Any, **kwargs: Any) -> Reader:
        return Reader(*args, **kwargs)

    def add(self, name: str, *, up: bool = True) -> None:
        self.inside(lambda: self._route.link("add", ifname=name, kind="veth", peer={"ifname": _far(name)}))
        self.admin(name, up=True)
        self.carrier(name, up=up)

    def carrier(self, name: str, *, up: bool) -> None:
        self.admin(_far(name), up=up)

    def admin(self, name: str, *, up: bool) -> None:
        state = "up" if up else "down"
        self.inside(lambda: self._route.link("set", index=self._index(name), state=state))

    def flap(self, name: str, times: int) -> None:
        for _ in range(times):
            self.carrier(name, up=False)
            self.carrier(name, up=True)

    def remove(self, name: str) -> None:
        """Move it into another namespace, as a network plugin does for a pod."""
        with self._other.open() as other:
            self.inside(lambda: self._route.link("set", index=self._index(name), net_ns_fd=other.fileno()))

    def flood(self, name: str) -> None:
        def resize() -> None:
            index = self._index(name)
            for size in range(1280, 1480):
                self._route.link("set", index=index, mtu=size)

        self.inside(resize)

    def leave_bridge(self, name: str) -> None:
        """Make it a port of a bridge, and remove it again."""
        self.inside(lambda: self._route.link("add", ifname="br0", kind="bridge"))
        self.inside(lambda: self._route.link("set", index=self._index(name), master=self._index("br0")))
        self.inside(lambda: self._route.link("set", index=self._index(name), master=0))

    def listed_by_pyroute2(self) -> tuple[Link, ...]:
        """Return the links as pyroute2 alone lists and reads them."""
        messages = self.inside(lambda: list(self._route.get_links()))
        return tuple(
            Link(
                name=message.get_attr("IFLA_IFNAME"),
                index=message["index"],
                admin_up=message.get("state") == "up",
                up=message.get_attr("IFLA_CARRIER") == 1 and message.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN"),
                losses=message.get_attr("IFLA_CARRIER_DOWN_COUNT"),
            )
            for message in messages
        )

    def _index(self, name: str) -> int:
        (index,) = self._route.link_lookup(ifname=name)
        return int(index)


def _far(name: str) -> str:
    return f"far-{name}"


def _namespace(thread: int) -> Path:
    return Path(f"/proc/self/task/{thread}/ns/net")
