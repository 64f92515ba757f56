"""Modules and certificates that an idle agent need not have in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.certificates import Authority

SCRIPT = """
import sys
import kubemend.agent.cli.agent
import kubemend.agent.app.agent
from kubemend.agent.sources.network import netlink
netlink.RawLink(bytes(64), 1, "eth0").decode()
assert "pyroute2.netlink.rtnl.ifinfmsg" in sys.modules
heavy = (
    "kubemend.agent.hub", "kubemend.agent.doctor", "kubemend.agent.scan", "kubemend.agent.prove.measuring",
    "kubemend.agent.sources.nvml.reader", "cryptography",
    "kubernetes.aio.client", "kubernetes.client",
    "matplotlib", "pydantic", "pynvml", "pyroute2.iproute", "pyroute2.ndb", "requests", "rich.console", "tabulate",
)
print(*[name for name in heavy if name in sys.modules])
"""


def test_agent_imports_no_unused_heavy_modules() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("\n", "")


STARTED = """
import sys
from kubemend.{command} import {name}
try:
    {name}.main({arguments})
except SystemExit as end:
    assert end.code == 3, end.code
from aiohttp import connector
print(connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"])
"""


@pytest.mark.parametrize(
    ("command", "name", "arguments"),
    [
        ("agent.cli.agent", "agent", ["--node-name=a", "--catalog=/nonexistent"]),
        ("cli.controller", "controller", ["--metrics-address=192.0.2.1:1"]),
    ],
)
def test_authorities_of_the_system_are_not_loaded(
    command: str, name: str, arguments: list[str], tmp_path: Path
) -> None:
    """The arguments end the start once everything is imported."""
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(Authority.named("a").pem)
    script = STARTED.format(command=command, name=name, arguments=arguments)
    environment = {**os.environ, "SSL_CERT_FILE": str(authorities)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.stdout.splitlines()[-1:] == ["0"], done.stderr
