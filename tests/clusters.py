"""Provide dev nodes that tests share."""

import asyncio
import contextlib
from collections.abc import Iterator

from hack.devnode import node
from hack.devnode.cluster import Cluster
from hack.devnode.layout import NodeLayout
from tests import machine


@contextlib.contextmanager
def running(name: str, *, nodes: int, options: node.Options | None = None) -> Iterator[Cluster]:
    """Run ``nodes`` nodes; they must leave nothing behind. Bound to no event loop, because each test has its own."""
    machine.must_run_containers()
    node.setup()
    made = Cluster(NodeLayout.named(name), nodes=nodes, options=options)
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())
        assert made.leftovers() == []
        made.forget()
