"""The blocks of a policy that admits the nodes."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.hub import node_policy

ADDRESSES = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/27"), st.ip_addresses(v=6, network="fd00::/123"), st.ip_addresses()
)


def test_without_addresses_no_peer_is_admitted() -> None:
    """An empty list of peers would admit all."""
    assert node_policy.ingress([]) == []


def test_only_the_hubs_port_is_opened() -> None:
    (rule,) = node_policy.ingress(["10.0.0.1/32", "fd00::1/128"])
    assert rule == {
        "from": [{"ipBlock": {"cidr": "10.0.0.1/32"}}, {"ipBlock": {"cidr": "fd00::1/128"}}],
        "ports": [{"port": "hub"}],
    }


def test_neighbours_share_a_block() -> None:
    whole = [f"10.0.0.{number}" for number in range(256)]
    assert node_policy.blocks([[each] for each in whole]) == ["10.0.0.0/24"]


@given(st.lists(st.lists(ADDRESSES.map(str), max_size=4), max_size=40))
def test_blocks_contain_exactly_the_addresses(of_nodes: list[list[str]]) -> None:
    found = [ipaddress.ip_network(each) for each in node_policy.blocks(of_nodes)]
    every = {each for of_node in of_nodes for each in of_node}
    assert sum(each.num_addresses for each in found) == len(every)
    assert all(any(ipaddress.ip_address(each) in block for block in found) for each in every)
