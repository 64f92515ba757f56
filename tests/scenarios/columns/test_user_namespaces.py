"""Every strategy keeps the user namespace of a pod (``hostUsers: false``)."""

from collections.abc import Iterator
from typing import Final

import pytest

from hack.devnode import node
from hack.devnode.runtime_config import RuntimeOptions
from kubemend.agent.restart.intents import Strategy
from tests import eventually
from tests.devnode import userns_runc
from tests.scenarios import dev_nodes
from tests.scenarios.columns.board import ALONE, DATA, STRATEGIES, Board

pytestmark = [pytest.mark.devnode, pytest.mark.long]

MAPS: Final = ("uid_map", "gid_map")


@pytest.fixture(scope="module")
def dev() -> Iterator[node.DevNode]:
    """A node with a runc that can run such pods."""
    with dev_nodes.running("userns", options=node.Options(runtime=RuntimeOptions(runc=userns_runc.ensure()))) as made:
        yield made


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.value)
async def test_a_pod_in_a_user_namespace_is_restarted_with_the_same_mapping(board: Board, strategy: Strategy) -> None:
    name = f"mapped-{strategy.value}"
    spec = {"hostUsers": False, "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]}
    mounts = [{"name": "memory", "mountPath": "/memory"}]
    script = f"cat /memory/kept >> {DATA}/kept; echo kept > /memory/kept; touch {DATA}/wrote; {ALONE}"
    async with board.pod(name, script, spec=spec, volumeMounts=mounts) as before:
        process = await board.process(before.running[0])
        mapped = [(process / each).read_text().split() for each in MAPS]
        assert all(int(first_outside) > 0 for _, first_outside, _ in mapped), "root is not mapped to the node's root"
        volume = board.volume(before)
        await eventually.true((volume / "wrote").exists)  # it is Ready before it has run a command
        after = await board.restarted(name, strategy, before)
        assert (await board.process(after.running[0])) != process
        process = await board.process(after.running[0])
        assert [(process / each).read_text().split() for each in MAPS] == mapped
        await eventually.true(lambda: (volume / "kept").read_text() == "kept\n")  # its predecessor's file in memory
        await eventually.true(lambda: (volume / "up").read_text() == "up\nup\n")
        assert (volume / "up").stat().st_uid == 0, "volumes are mapped as well"
        assert not board.overlapped(after)
        assert '"event": "standby.' not in board.dev.layout.log_file("agent").read_text(), "it was held"
