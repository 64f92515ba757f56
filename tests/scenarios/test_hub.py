"""An agent without its controller is ready, reports the missing hub, and connects when the hub appears."""

import asyncio
import signal
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from tests.fakes.certificates import Authority
from tests.fakes.hub import FakeHub
from tests.scenarios import training
from tests.scenarios.test_missing_parts import started

pytestmark = pytest.mark.devnode


def trust(directory: Path, authority: Authority) -> dict[str, str]:
    """Write the files by which the agent finds the hub, and return its flags."""
    (directory / "ca.crt").write_bytes(authority.pem)
    (directory / "token").write_text("t")
    return {"hub-ca": str(directory / "ca.crt"), "hub-token": str(directory / "token")}


async def test_missing_hub_blocks_nothing_and_is_found_later(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    authority = Authority.named("kubemend-hub")
    hub = FakeHub(authority)
    async with hub:
        pass  # its port is known now, and nothing serves there
    flags = {"hub": f"127.0.0.1:{hub.port}", **trust(tmp_path, authority)}
    async with training.pod(dev, observer, "alone"), started(dev, tmp_path, **flags) as agent:
        ready = await readyz.until(
            agent, lambda ready: ready["parts"]["hub"]["state"] == "degraded" and ready["ready"], what="a degraded hub"
        )
        assert ready["status"] == 200
        assert "no hub answers" in ready["parts"]["hub"]["message"]
        assert ready["parts"]["hub"]["hint"]
        before = await observer.see("alone")
        await training.xid(dev, observer, "alone", 31)
        await training.fixed(observer, "alone", before, because="Xid 31")
        async with hub:
            stream, hello = await hub.welcomed()
            await readyz.until(agent, lambda ready: ready["parts"]["hub"]["state"] == "ready", what="hub ready")
            assert hello.node == dev.name
            agent.child.signal(signal.SIGTERM)
            assert await agent.child.wait(timeout=training.DEADLINE) == 0
            await asyncio.wait_for(stream.over.wait(), training.DEADLINE)
