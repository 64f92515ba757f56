"""Run the work of a leader: one coordinator per term, and a hub that accepts agents."""

import asyncio
import contextlib
from collections.abc import Iterator

import structlog

from kubemend.common import aio
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.hub.node_policy import NodePolicy
from kubemend.controller.hub.ports import Session
from kubemend.controller.hub.server import Hub
from kubemend.controller.leader.election import Term
from kubemend.controller.model.members import PodRef
from kubemend.controller.restarts.pod_replacer import Outcome

log = structlog.get_logger(__name__)


class LeaderRelay:
    """Receive the agents' streams for as long as the process lives and forward them to the current coordinator."""

    def __init__(self) -> None:
        self._coordinator: GangCoordinator | None = None

    def use(self, coordinator: GangCoordinator | None) -> None:
        """Forward everything to this coordinator from now on."""
        self._coordinator = coordinator

    def connected(self, session: Session) -> None:
        """Forward that an agent's stream begins."""
        if self._coordinator is not None:
            self._coordinator.connected(session)

    def hello(self, session: Session, hello: pb.Hello) -> None:
        """Forward an agent's Hello with the state of its members."""
        if self._coordinator is not None:
            self._coordinator.hello(session, hello)

    def received(self, session: Session, message: pb.AgentMessage) -> None:
        """Forward an agent's message about its members."""
        if self._coordinator is not None:
            self._coordinator.received(session, message)

    def disconnected(self, session: Session) -> None:
        """Forward that an agent's stream has ended."""
        if self._coordinator is not None:
            self._coordinator.disconnected(session)

    def replaced(self, pod: PodRef, outcome: Outcome, detail: str) -> None:
        """Forward that a pod to be replaced has been deleted, no longer exists, or must not be deleted."""
        if self._coordinator is not None:
            self._coordinator.replaced(pod, outcome, detail)


class LeadershipTerms:
    """Run one term after another (``controller.leader.election.Election`` calls it)."""

    def __init__(
        self, *, dependencies: Dependencies, hub: Hub, relay: LeaderRelay, policy: NodePolicy | None = None
    ) -> None:
        """``policy``: the NetworkPolicy to keep."""
        self._dependencies = dependencies
        self._hub = hub
        self._relay = relay
        self._policy = policy

    async def __call__(self, term: Term) -> None:
        """Lead until cancelled. The caller cancels when the Lease is lost."""
        dependencies = self._dependencies
        coordinator = GangCoordinator(dependencies=dependencies, term=term)
        async with asyncio.TaskGroup() as tasks:
            aio.spawn_eternal(tasks, dependencies.restarts.run(), name="restarts")
            aio.spawn_eternal(tasks, dependencies.pod_replacer.run(), name="pod-replacer")
            aio.spawn_eternal(tasks, self._run_jobsets(), name="jobsets")
            aio.spawn_eternal(tasks, coordinator.run(), name="coordinator")
            if self._policy is not None:
                aio.spawn_eternal(tasks, self._policy.run(), name="hub policy")
            await coordinator.ready.wait()
            with self._routed(coordinator, term):
                aio.spawn_eternal(tasks, self._follow_epoch(term, led=term.epoch), name="epoch")
                await asyncio.Event().wait()

    async def _run_jobsets(self) -> None:
        """Run JobSets once the previous leaders' rounds are known.

        Earlier, a round under way would look as if its Restart had been deleted, and its failure would be counted
        twice.
        """
        await self._dependencies.restarts.wait_synced()
        await self._dependencies.jobsets.run()

    @contextlib.contextmanager
    def _routed(self, coordinator: GangCoordinator, term: Term) -> Iterator[None]:
        """Route agents to this coordinator; on exit, stop that before anything else of the term ends."""
        self._relay.use(coordinator)
        self._hub.lead(term.epoch)
        self._dependencies.metrics.leads.set(1)
        try:
            yield
        finally:
            self._dependencies.metrics.leads.set(0)
            self._hub.stand_by()
            self._relay.use(None)

    async def _follow_epoch(self, term: Term, *, led: int) -> None:
        """Lead with each epoch that the term rises to.

        Agents that follow a higher epoch than ``led`` rejected this leader's messages.
        """
        while True:
            led = await term.risen(above=led)
            log.warning("leader.epoch_raised", seen=term.seen, epoch=led)
            self._hub.lead(led)
            for session in [*self._hub.sessions().values()]:
                session.send(pb.HubMessage(sync=pb.Sync()))
