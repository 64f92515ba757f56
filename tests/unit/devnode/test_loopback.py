"""Ports for servers of the dev node."""

import itertools
import secrets
import socket
from pathlib import Path

import pytest

from hack.devnode import loopback


def test_each_call_returns_another_port_that_no_outgoing_connection_takes() -> None:
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [loopback.free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < max(lowest_outgoing, 32_768)


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", loopback.free_port())) as server:
        ports = itertools.chain([server.getsockname()[1]], loopback.claimed())
        monkeypatch.setattr(loopback, "_ports", ports)
        assert loopback.free_port() != server.getsockname()[1]


def test_ports_of_two_programs_differ_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda _: 7)
    one, other = loopback.claimed(), loopback.claimed()
    ports = {next(one) for _ in range(150)}
    assert ports.isdisjoint(next(other) for _ in range(150))
