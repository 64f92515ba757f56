"""Modules that an idle agent need not have in memory."""

import subprocess
import sys

SCRIPT = """
import sys
import kubemend.agent.app.agent
from kubemend.agent.sources.network import netlink
netlink.RawLink(bytes(64), 1, "eth0").decode()
assert "pyroute2.netlink.rtnl.ifinfmsg" in sys.modules
heavy = (
    "kubemend.agent.hub", "kubemend.agent.doctor", "kubemend.agent.scan", "cryptography",
    "kubernetes.aio.client", "kubernetes.client",
    "matplotlib", "pydantic", "pynvml", "pyroute2.iproute", "pyroute2.ndb", "requests", "rich.console", "tabulate",
)
print(*[name for name in heavy if name in sys.modules])
"""


def test_agent_imports_no_unused_heavy_modules() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("\n", "")
