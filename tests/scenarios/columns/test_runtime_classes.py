"""Pods whose RuntimeClass names a sandboxed runtime are refused by every strategy; those with another handler are not.

All handlers of this node are runc under other names: neither gVisor nor Kata runs here. Only the name counts, which
containerd reports for the sandbox.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode import node
from hack.devnode.runtime_config import RuntimeOptions
from kubemend.common.kube import paths
from tests.scenarios import dev_nodes
from tests.scenarios.columns.board import ALONE, STRATEGIES, Board

pytestmark = [pytest.mark.devnode, pytest.mark.long]

SANDBOXED = {"gvisor": "runsc", "kata-containers": "kata-qemu"}
"""Handlers by the name of a RuntimeClass, as the runtimes' own installations name them."""
PLAIN = {"gpu": "nvidia"}


@pytest.fixture(scope="module")
def dev() -> Iterator[node.DevNode]:
    """A node with these handlers."""
    runtime = RuntimeOptions(handlers=(*SANDBOXED.values(), *PLAIN.values()))
    with dev_nodes.running("handlers", options=node.Options(runtime=runtime)) as made:
        yield made


@pytest.fixture(autouse=True)
async def classes(board: Board) -> AsyncIterator[None]:
    """The RuntimeClasses, for one test."""
    collection = paths.collection("runtimeclasses", group="node.k8s.io")
    for name, handler in (SANDBOXED | PLAIN).items():
        await board.api.create(collection, {"metadata": {"name": name}, "handler": handler})
    yield
    for name in SANDBOXED | PLAIN:
        await board.api.delete(f"{collection}/{name}")


@pytest.mark.parametrize("name", SANDBOXED)
async def test_sandboxed_runtime_is_refused_with_its_handler(board: Board, name: str) -> None:
    async with board.pod(name, spec={"runtimeClassName": name}) as before:
        for strategy in STRATEGIES:
            refused = (await board.asked(name, strategy))[-1]
            assert (refused["ok"], refused["reason"]) == (False, "RuntimeUnsupported")
            assert f"its runtime handler {SANDBOXED[name]} is" in refused["detail"]
        assert (await board.see(name)).running == before.running


async def test_other_handler_of_runc_is_restarted(board: Board) -> None:
    async with board.pod("gpu", ALONE, spec={"runtimeClassName": "gpu"}) as before:
        await board.restarted("gpu", STRATEGIES[0], before)
