"""Names and paths of a dev node."""

import pathlib
from ipaddress import IPv4Address, IPv4Network

import pytest

from hack.devnode.layout import SERVICES, LayoutError, NodeLayout


def test_nodes_of_different_names_share_nothing() -> None:
    one, two = NodeLayout.named("one"), NodeLayout.named("two")
    assert one.root != two.root
    assert one.bridge != two.bridge
    assert one.subnet != two.subnet
    assert one.cgroup_parent != two.cgroup_parent


def test_a_link_name_fits_however_long_the_node_name() -> None:
    assert len(NodeLayout.named("n" * 32).bridge) <= 15


def test_root_too_long_for_sockets_is_refused_with_a_hint() -> None:
    with pytest.raises(LayoutError, match="use a shorter root such as /run/kubemend-dev/deep"):
        NodeLayout(root=pathlib.Path("/" + "x" * 100), name="deep")


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a.b", "a" * 33])
def test_name_that_is_not_a_label_is_refused(name: str) -> None:
    with pytest.raises(LayoutError):
        NodeLayout.named(name)


@pytest.mark.parametrize("index", [-1, 10240])
def test_a_network_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(LayoutError, match="not within"):
        NodeLayout.named("a", index=index)


@pytest.mark.parametrize("index", [0, 255, 256, 10239])
def test_addresses_of_services_are_a_network_outside_that_of_pods(index: int) -> None:
    node = NodeLayout.named("a", index=index)
    services, all_services = IPv4Network(node.services), IPv4Network(SERVICES)
    assert {IPv4Address(node.api_service), IPv4Address(node.dns_service)} < set(services.hosts())
    assert services.subnet_of(all_services)
    assert not IPv4Network(node.subnet).overlaps(all_services)


def test_a_neighbour_shares_nothing() -> None:
    first = NodeLayout.named("one")
    second = first.neighbour(2)
    assert (second.name, second.root.name) == ("one-2", "one-2")
    assert second.containerd_socket != first.containerd_socket
    assert second.subnet != first.subnet
