"""A dev node's bridge is removed with all links in it."""

import os
import subprocess

from hack.devnode import network
from hack.devnode.layout import NodeLayout
from tests import machine


def test_links_that_end_while_the_bridge_is_deleted_are_no_error() -> None:
    machine.must_run_containers()
    where = NodeLayout.named(f"links-{os.getpid()}")
    network.ensure_bridge(where)
    try:
        one, other = (f"km{end}{os.getpid()}" for end in "ab")  # deleting one end deletes the other
        subprocess.run(("ip", "link", "add", one, "type", "veth", "peer", "name", other), check=True)
        for link in (one, other):
            subprocess.run(("ip", "link", "set", link, "master", where.bridge), check=True)
    finally:
        network.delete_bridge(where)
    assert not network.bridge_exists(where)
