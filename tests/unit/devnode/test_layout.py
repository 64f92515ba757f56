"""Names and paths of a dev node."""

import pathlib

import pytest

from hack.devnode.layout import LayoutError, NodeLayout


def test_nodes_of_different_names_share_nothing() -> None:
    one, two = NodeLayout.named("one"), NodeLayout.named("two")
    assert one.root != two.root
    assert one.bridge != two.bridge
    assert one.subnet != two.subnet
    assert one.cgroup_parent != two.cgroup_parent


def test_a_link_name_fits_however_long_the_node_name() -> None:
    assert len(NodeLayout.named("n" * 32).bridge) <= 15


def test_a_root_too_long_for_unix_sockets_is_refused_with_the_mend() -> None:
    with pytest.raises(LayoutError, match="use a shorter root such as /run/kubemend-dev/deep"):
        NodeLayout(root=pathlib.Path("/" + "x" * 100), name="deep")


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a.b", "a" * 33])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(LayoutError):
        NodeLayout.named(name)


@pytest.mark.parametrize("index", [-1, 256])
def test_a_network_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(LayoutError, match="not within"):
        NodeLayout.named("a", index=index)


def test_a_neighbour_with_a_runtime_of_its_own_shares_nothing() -> None:
    first = NodeLayout.named("one")
    second = first.neighbour(2, shares_runtime=False)
    assert (second.name, second.root.name) == ("one-2", "one-2")
    assert second.containerd_socket != first.containerd_socket
    assert second.subnet != first.subnet


def test_a_neighbour_that_shares_the_runtime_is_in_its_network_and_nothing_else() -> None:
    first = NodeLayout.named("one")
    second = first.neighbour(2, shares_runtime=True)
    assert second.containerd_socket == first.containerd_socket
    assert second.gateway == first.gateway
    assert second.cgroup_parent != first.cgroup_parent
    assert second.pod_resources_socket != first.pod_resources_socket
    assert second.agent_state != first.agent_state
