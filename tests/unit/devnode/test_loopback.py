"""Ports for servers of the dev node."""

import socket
from pathlib import Path

from hack.devnode import loopback


def test_each_call_returns_another_port_that_no_outgoing_connection_takes() -> None:
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [loopback.free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < max(lowest_outgoing, 32_768)


def test_a_port_in_use_is_passed_over() -> None:
    taken = loopback.free_port() + 1
    with socket.create_server(("127.0.0.1", taken)):
        assert loopback.free_port() != taken
