"""Provide two nodes on which all faults are tried, one after another."""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

from bench.faults import looking
from bench.faults.product import Product
from bench.faults.reporting import Kind, Reported
from bench.faults.trainers import Trainer
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import Shape
from hack.devnode.gangs import Gang
from hack.devnode.layout import NodeLayout
from hack.devnode.node import DevNode, Options
from hack.devnode.observer import Observer
from hack.devnode.rounds import Rounds
from kubemend.agent.clients.cri.client import CriClient
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors
from kubemend.controller.rounds.status import HELD_AFTER

_GPUS = 4
_PATIENT = kube.Deadlines(connect=30.0, call=120.0)
"""For the benchmark itself, which creates pods by the hundred and polls: a busy machine may answer late."""


class Stage:
    """Manage the nodes and their observers. ``directory`` is for the files of one fault."""

    def __init__(
        self, cluster: Cluster, *, api: kube.KubeClient, eyes: Sequence[tuple[Observer, CriClient]], directory: Path
    ) -> None:
        self.cluster = cluster
        self.api = api
        self.directory = directory
        self._eyes = eyes

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, directory: Path) -> AsyncIterator[Self]:
        """Run the nodes for the length of the block, and remove everything."""
        cluster = Cluster(NodeLayout.named(f"faults-{os.getpid()}"), nodes=2, options=Options(gpus=_GPUS))
        async with cluster, contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(kube.connect(kubeconfig=cluster.first.kubeconfig, deadlines=_PATIENT))
            eyes = [
                (
                    await stack.enter_async_context(Observer.of(node.layout)),
                    await stack.enter_async_context(CriClient(str(node.layout.containerd_socket))),
                )
                for node in cluster.nodes
            ]
            yield cls(cluster, api=api, eyes=eyes, directory=directory)
        cluster.forget()

    @property
    def nodes(self) -> Sequence[DevNode]:
        """Return the nodes; the first has the API server."""
        return self.cluster.nodes

    async def api_answers(self) -> bool | None:
        """Return True when the API server answers; else None: after a long hang it needs a while."""
        try:
            await self.api.get("/version")
        except errors.KubeError:
            return None
        return True

    def cri(self, node: int) -> CriClient:
        """Return a node's runtime."""
        return self._eyes[node][1]

    @contextlib.asynccontextmanager
    async def product(self) -> AsyncIterator[Product]:
        """Provide the product, with no process started and without state."""
        async with Product.on(self.cluster, state=self.directory) as product:
            yield product

    def trainer(self, name: str, *, node: int = 0, **fields: Any) -> "contextlib.AbstractAsyncContextManager[Trainer]":
        """Provide a pod that trains on a node's GPU, for the length of the block."""
        observer, cri = self._eyes[node]
        return Trainer.on(self.nodes[node], name, observer=observer, cri=cri, **fields)

    def gang(
        self, name: str, *, nodes: Sequence[int] = (0, 1), members: int = 2
    ) -> "contextlib.AbstractAsyncContextManager[Gang]":
        """Provide a gang, its members on these nodes in turns, for the length of the block."""
        return Gang.on([self.nodes[index] for index in nodes], name, shape=Shape(members=members, gpus=0))

    def rounds(self, gang: Gang) -> Rounds:
        """Return the gang's rounds."""
        return Rounds(self.api, gang.template.key)

    async def keeps_round(self, gang: Gang, reported: Reported, *, number: int, since: int, what: str) -> None:
        """Wait for the end of the gang's round, and check that it is done, together, in place, and only once.

        Raises TimeoutError.
        """
        restarts = self.rounds(gang)
        restart = await restarts.finished(number, timeout=looking.SECONDS)
        phase, members = restart["status"]["phase"], restart["status"]["members"]
        await gang.all_running(since=since, timeout=looking.SECONDS)
        await gang.shown_running(timeout=looking.SECONDS)
        reported.keeps(Kind.ROUND, f"{what}: {phase}, {members}", holds=phase == "Done")
        reported.keeps(Kind.ROUND, f"{what}: a second round came", holds=len(await restarts.all()) == number)
        held = [each for each in restart["status"]["conditions"] if each["type"] == "HeldTogether"]
        reported.keeps(
            Kind.ROUND, f"{what}: {held}", holds=[each["reason"] in ("AllHeld", HELD_AFTER) for each in held] == [True]
        )
