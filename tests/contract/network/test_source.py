"""The source's findings on links, on the stand-in and on the kernel's own messages."""

from kubemend.agent.model.findings import FindingKind
from kubemend.common.components import ComponentState
from tests.fakes.nic_node import ONE, TWO, NicNode, Notes


async def ready(notes: Notes) -> None:
    await notes.until(lambda: notes.state is ComponentState.READY)


async def known_up(notes: Notes, *pcis: str) -> None:
    await notes.until(lambda: all(notes.over(pci, FindingKind.LINK_DOWN) for pci in pcis))


async def lose(node: NicNode, notes: Notes, *, pci: str, netdev: str) -> None:
    """Remove a link's carrier and wait for the finding: all earlier events were then processed, too."""
    node.links.carrier(netdev, up=False)
    await notes.until(lambda: FindingKind.LINK_DOWN in notes.held(pci))


async def test_lost_carrier_is_reported_and_cleared_when_it_returns(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await known_up(notes, ONE)
        await lose(node, notes, pci=ONE, netdev="eth1")
        assert notes.held(ONE)[FindingKind.LINK_DOWN] == "eth1 has no carrier; it was up on this boot"
        node.links.carrier("eth1", up=True)
        await notes.until(lambda: FindingKind.LINK_DOWN not in notes.held(ONE))


async def test_a_link_that_never_had_a_carrier_is_no_fault(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1", up=False)
    node.nic(TWO, "eth2")
    async with node.running(notes):
        await known_up(notes, TWO)
        await lose(node, notes, pci=TWO, netdev="eth2")
    assert FindingKind.LINK_DOWN not in notes.held(ONE)


async def test_restarted_agent_reports_a_link_lost_in_the_meantime(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await known_up(notes, ONE)
    node.links.carrier("eth1", up=False)
    async with node.running(notes):
        await notes.until(lambda: FindingKind.LINK_DOWN in notes.held(ONE))


async def test_a_link_that_was_taken_down_is_no_fault(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes):
        await known_up(notes, ONE, TWO)
        node.links.admin("eth1", up=False)
        await lose(node, notes, pci=TWO, netdev="eth2")
    assert notes.held(ONE) == {}


async def test_a_netdev_that_was_moved_into_a_pod_is_no_fault(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes):
        await known_up(notes, ONE, TWO)
        node.tree.forget_netdev("eth1")
        node.links.remove("eth1")
        await lose(node, notes, pci=TWO, netdev="eth2")
    assert notes.held(ONE) == {}


async def test_a_link_that_leaves_a_bridge_is_still_watched(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await known_up(notes, ONE)
        node.links.leave_bridge("eth1")
        await lose(node, notes, pci=ONE, netdev="eth1")


async def test_a_link_that_is_lost_again_and_again_is_flapping(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await known_up(notes, ONE)
        node.links.flap("eth1", 3)
        await notes.until(lambda: FindingKind.LINK_FLAPPING in notes.held(ONE))
        await notes.until(lambda: notes.over(ONE, FindingKind.LINK_FLAPPING))


async def test_lost_messages_are_counted_and_the_links_listed_again(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, receive_buffer=4096):
        await known_up(notes, ONE)
        node.links.flood("eth1")  # nothing is read in the meantime: the event loop is blocked
        await notes.until(lambda: "links" in notes.overflows)
        await ready(notes)
        await lose(node, notes, pci=ONE, netdev="eth1")


async def test_a_nic_that_is_plugged_in_later_is_followed(node: NicNode, notes: Notes) -> None:
    async with node.running(notes):
        await notes.until(lambda: notes.state is ComponentState.IDLE)
        node.nic(ONE, "eth1")
        await known_up(notes, ONE)
        await lose(node, notes, pci=ONE, netdev="eth1")
