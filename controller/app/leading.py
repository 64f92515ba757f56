"""What this replica does while it leads: one conductor for each term, and the hub open to agents."""

import asyncio
import contextlib
from collections.abc import Iterator

import structlog

from common import aio
from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app.conductor import Conductor
from controller.app.outside import Outside
from controller.hub.ports import Session
from controller.hub.server import Hub
from controller.leader.election import Term
from controller.model.members import PodRef
from controller.restarts.recreate import Outcome

log = structlog.get_logger(__name__)


class Relay:
    """Hears the agents' streams for as long as the process lives, and passes on what it hears to who leads now."""

    def __init__(self) -> None:
        self._conductor: Conductor | None = None

    def use(self, conductor: Conductor | None) -> None:
        """Pass everything on to this one from now on."""
        self._conductor = conductor

    def connected(self, session: Session) -> None:
        """An agent's stream begins."""
        if self._conductor is not None:
            self._conductor.connected(session)

    def hello(self, session: Session, hello: pb.Hello) -> None:
        """An agent says where everything stands."""
        if self._conductor is not None:
            self._conductor.hello(session, hello)

    def told(self, session: Session, message: pb.AgentMessage) -> None:
        """An agent tells of its members."""
        if self._conductor is not None:
            self._conductor.told(session, message)

    def gone(self, session: Session) -> None:
        """An agent's stream has ended."""
        if self._conductor is not None:
            self._conductor.gone(session)

    def replaced(self, pod: PodRef, outcome: Outcome, detail: str) -> None:
        """A pod that was to be replaced has been deleted, is gone already, or must not be deleted."""
        if self._conductor is not None:
            self._conductor.replaced(pod, outcome, detail)


class Leading:
    """Leads, term after term (``controller.leader.election.Election`` calls it)."""

    def __init__(self, *, outside: Outside, hub: Hub, relay: Relay) -> None:
        self._outside = outside
        self._hub = hub
        self._relay = relay

    async def __call__(self, term: Term) -> None:
        """Lead until cancelled, which is when the Lease is lost."""
        outside = self._outside
        conductor = Conductor(outside=outside, term=term)
        async with asyncio.TaskGroup() as tasks:
            aio.spawn_eternal(tasks, outside.restarts.run(), name="restarts")
            aio.spawn_eternal(tasks, outside.recreator.run(), name="recreator")
            aio.spawn_eternal(tasks, self._run_jobsets(), name="jobsets")
            aio.spawn_eternal(tasks, conductor.run(), name="conductor")
            await conductor.ready.wait()
            with self._heard(conductor, term):
                aio.spawn_eternal(tasks, self._follow_epoch(term, led=term.epoch), name="epoch")
                await asyncio.Event().wait()

    async def _run_jobsets(self) -> None:
        """Run JobSets once the rounds of former leaders are known.

        Before, one that is on would pass for one taken back, and its failure would be paid for twice.
        """
        await self._outside.restarts.wait_synced()
        await self._outside.jobsets.run()

    @contextlib.contextmanager
    def _heard(self, conductor: Conductor, term: Term) -> Iterator[None]:
        """Have agents speak to this conductor; when that ends, it is before anything else of the term does."""
        self._relay.use(conductor)
        self._hub.lead(term.epoch)
        self._outside.metrics.leads.set(1)
        try:
            yield
        finally:
            self._outside.metrics.leads.set(0)
            self._hub.stand_by()
            self._relay.use(None)

    async def _follow_epoch(self, term: Term, *, led: int) -> None:
        """Speak with the epoch that the term has risen to: who has obeyed a higher one than ``led`` did not hear us."""
        while True:
            led = await term.risen(above=led)
            log.warning("leader.epoch_raised", seen=term.seen, epoch=led)
            self._hub.lead(led)
            for session in [*self._hub.sessions().values()]:
                session.send(pb.HubMessage(sync=pb.Sync()))
