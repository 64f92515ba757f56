"""Run a whole dev node for the tests that share it."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Final

import pytest

from hack.devnode import leftovers, node
from hack.devnode.layout import NodeLayout
from hack.devnode.runtime_config import CRIO, RuntimeOptions
from tests import machine

ON_CRIO: Final = RuntimeOptions().program == CRIO
NOT_ON_CRIO: Final = pytest.mark.skipif(
    ON_CRIO, reason="CRI-O does not return containers' configs, so a rerun, and a swap with a grace period, is refused"
)


@contextlib.contextmanager
def running(name: str, *, options: node.Options | None = None, has_programs: bool = False) -> Iterator[node.DevNode]:
    """Run a node for the length of the block, and check that nothing of it is left.

    ``has_programs``: nothing is fetched or installed.
    """
    machine.must_run_containers()
    if not has_programs:
        node.setup()
    made = node.DevNode(NodeLayout.named(f"{name}-{os.getpid()}"), options=options)
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())
        assert leftovers.find(made.layout) == []
        made.layout.root.with_name(f".{made.layout.root.name}.lock").unlink(missing_ok=True)
