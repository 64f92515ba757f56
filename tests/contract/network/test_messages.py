"""The kernel's own messages, as the agent reads them."""

import asyncio
import contextlib

from kubemend.agent.sources.network import netlink, sockets
from kubemend.agent.sources.network.sockets import Uevent
from tests.contract.network.real import RealLinks


async def test_links_are_read_as_pyroute2_reads_them(real_links: RealLinks) -> None:
    listener = real_links.inside(lambda: netlink.listen(receive_buffer=1 << 20))
    real_links.add("eth1")
    real_links.add("eth2", up=False)
    real_links.admin("eth2", up=False)
    real_links.flap("eth1", 2)
    with contextlib.closing(listener):
        async with asyncio.timeout(60):
            while {link.name for link in real_links.listed_by_pyroute2() if link.up} != {"eth1", "far-eth1"}:
                await listener.wait()  # the kernel processes carrier changes at most once a second
                list(listener.read())
    read = tuple(raw.decode() for raw in real_links.inside(netlink.links))
    assert sorted(read, key=lambda link: link.index) == sorted(
        real_links.listed_by_pyroute2(), key=lambda link: link.index
    )
    assert {link.name: link.losses for link in read}["eth1"] == 3  # one before it had its first carrier


async def test_kernel_reports_devices_that_appear_and_disappear(real_links: RealLinks) -> None:
    listener = real_links.inside(lambda: sockets.listen_uevents(receive_buffer=1 << 20))
    real_links.add("eth1")
    real_links.remove("eth1")
    expected = {Uevent(action, "/devices/virtual/net/eth1", "net") for action in ("add", "remove")}
    heard: set[Uevent | None] = set()
    with contextlib.closing(listener):
        async with asyncio.timeout(60):
            while not expected <= heard:
                await listener.wait()
                heard.update(map(sockets.parse_uevent, listener.read()))
