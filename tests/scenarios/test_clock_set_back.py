"""The node's clock is set back, so that containers from before it were created in the future.

Kubelet takes the container of a name that was created last for its newest: a successor would seem older than the
container that it replaces.
"""

import json
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from tests.scenarios import dev_nodes, training
from tests.scenarios.test_outages import came_back, own_node

pytestmark = [
    pytest.mark.devnode,
    pytest.mark.skipif(dev_nodes.ON_CRIO, reason="changes times in containerd's files; CRI-O keeps them elsewhere"),
]

HOUR = 3600 * 10**9


async def set_back(dev: node.DevNode) -> None:
    """Have the runtime record the creation and start of all containers an hour later, instead of a set clock."""
    await dev.containerd.kill()
    for file in dev.layout.containerd_root.glob("io.containerd.grpc.v1.cri/containers/*/status"):
        status = json.loads(file.read_text())
        status |= {name: status[name] + HOUR for name in ("CreatedAt", "StartedAt")}
        file.write_text(json.dumps(status))
    await dev.containerd.restart()


@pytest.mark.parametrize("policy", ["Never", pytest.param("OnFailure", marks=pytest.mark.long)])
async def test_kubelet_shows_the_successor_of_a_container_from_before(tmp_path: Path, policy: str) -> None:
    async with (
        own_node("clock") as dev,
        Observer.of(dev.layout) as observer,
        training.pod(dev, observer, "clock", restart_policy=policy) as before,
    ):
        await set_back(dev)
        async with dev.agent(f"--state-dir={tmp_path / 'state'}") as agent:
            await readyz.until_ready(agent)
            await training.xid(dev, observer, "clock", 31)
            await came_back(observer, "clock", before)
