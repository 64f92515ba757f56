"""A dev node's bridge is made without the program ``ip``, and removed with all links in it."""

import os

import pytest
from pyroute2 import IPRoute

from hack.devnode import network
from hack.devnode.layout import NodeLayout
from tests import machine


@pytest.fixture(autouse=True)
def _without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_links_that_end_while_the_bridge_is_deleted_are_no_error() -> None:
    machine.must_run_containers()
    where = NodeLayout.named(f"links-{os.getpid()}")
    network.ensure_bridge(where)
    try:
        one, other = (f"km{end}{os.getpid()}" for end in "ab")  # deleting one end deletes the other
        with IPRoute() as route:
            route.link("add", ifname=one, kind="veth", peer={"ifname": other})
            (bridge,) = route.link_lookup(ifname=where.bridge)
            for link in (one, other):
                route.link("set", index=route.link_lookup(ifname=link)[0], master=bridge)
    finally:
        network.delete_bridge(where)
    assert not network.bridge_exists(where)


def test_bridge_has_its_addresses_and_is_up() -> None:
    machine.must_run_containers()
    where = NodeLayout.named(f"address-{os.getpid()}")
    for _ in range(2):  # it may exist already
        network.ensure_bridge(where)
    try:
        network.add_address(where, "198.51.100.7")
        with IPRoute() as route:
            (bridge,) = route.link_lookup(ifname=where.bridge)
            found = {
                (each.get_attr("IFA_ADDRESS"), each["prefixlen"]) for each in route.get_addr(index=bridge, family=2)
            }
            (link,) = route.get_links(bridge)
        assert found == {(where.gateway, int(where.subnet.rpartition("/")[2])), ("198.51.100.7", 32)}
        assert link["state"] == "up"
    finally:
        network.delete_bridge(where)
