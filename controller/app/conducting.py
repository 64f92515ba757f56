"""One round under way: events go to the machine in batches, its effects to agents and the API server."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from common import contained
from controller.app import story
from controller.app.outside import Outside
from controller.app.words import Orders
from controller.model import rounds
from controller.model.members import NodeName
from controller.model.rounds import FaultTold, NodeTold, RoundEvent
from controller.rounds import machine, status
from controller.rounds.states import Advance, Round, Stand

log = structlog.get_logger(__name__)

_LINGER_SECONDS: Final = 10e-6
"""For each member: thousands of answers come at once, and each look at a round costs as much as it has members."""


class Conducting:
    """Moves one round to its end. Plain calls on the event loop; nothing here waits."""

    def __init__(
        self,
        first: Advance,
        *,
        orders: Orders,
        outside: Outside,
        over: Callable[["Conducting", tuple[FaultTold, ...]], None],
    ) -> None:
        """``over`` is called once, with the faults that are to be decided on now that it is over."""
        self._round = first.round
        self._orders = orders
        self._outside = outside
        self._over = over
        self._events: list[RoundEvent] = []
        self._loop = asyncio.get_running_loop()
        self._flush: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        self._awaited = 0  # so many have still to answer, as far as the round knows
        self.released_at: float | None = None
        self._perform(first)

    @property
    def round(self) -> Round:
        """The round as it stands."""
        return self._round

    @property
    def id(self) -> str:
        """How agents call it."""
        return self._round.ref.id

    def take(self, *events: RoundEvent) -> None:
        """Have events looked at, together with those that come in the same moment."""
        if self._ended:
            return
        self._events.extend(events)
        if len(self._events) == self._awaited:
            self._look_in(0.0)
        elif self._flush is None:
            self._look_in(_LINGER_SECONDS * len(self._round.members))

    def drop(self) -> None:
        """Leave the round where it stands: another replica goes on."""
        self._ended = True
        for timer in (self._flush, self._alarm):
            if timer is not None:
                timer.cancel()

    def _look_in(self, seconds: float) -> None:
        if self._flush is not None:
            self._flush.cancel()
        self._flush = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._flush = None
        events, self._events = self._events, []
        with contained.within(contained.Part.ROUND, self.id) as work:
            self._perform(machine.advance(self._round, events, now=self._outside.now()))
        if work.failed:
            self.give_up()

    def give_up(self) -> None:
        """Fail for a defect of ours. Agents let go by themselves what they hold."""
        outside = self._outside
        self.drop()
        with contained.within(contained.Part.ROUND, self.id):
            restart = outside.restarts.restarts().get(self.id)
            told = restart.status if restart is not None else {}
            why = "a defect of the controller; its log has the traceback"
            outside.restarts.set_status(self.id, story.failed(told, reason=story.INTERNAL, why=why, now=outside.now()))
        with contained.within(contained.Part.ROUND, self.id):
            self._over(self, ())

    def _perform(self, advance: Advance) -> None:
        before, self._round = self._round, advance.round
        self._awaited = advance.round.count(Stand.STOPPING, Stand.RELEASING)
        if before.phase is not advance.round.phase:
            stands = {stand.value: count for stand, count in advance.round.tally.items() if count}
            log.info("round.phase", round=self.id, phase=advance.round.phase.value, members=stands)
        for effect in advance.effects:
            self._do(effect)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if advance.round.phase.is_final:
            self.drop()
            self._over(self, advance.again)
        elif advance.wake_at is not None:
            self._alarm = self._loop.call_later(max(advance.wake_at - self._outside.now(), 0.0), self.take)

    def _do(self, effect: rounds.Effect) -> None:
        match effect:
            case rounds.Stop() | rounds.Release() | rounds.Abort():
                if isinstance(effect, rounds.Release) and self.released_at is None:
                    self.released_at = self._outside.now()
                node, message = self._orders.of(effect)
                session = self._outside.sessions(node)
                if session is not None:  # who is not connected is told again
                    session.send(message)
            case rounds.Recreate():
                log.info("round.recreate", round=self.id, pod=str(effect.pod), reason=effect.reason, force=effect.force)
                self._outside.recreator.recreate(effect)
                if effect.device_failure:
                    gang, node = self._round.ref.gang, self._round.members[effect.pod.uid].member.node
                    self._outside.jobsets.left(gang, node=node, code=effect.reason, pod=effect.pod.uid)
            case rounds.Record():
                self._outside.restarts.set_status(self.id, status.render(self._round))


def node_told(node: NodeName, *, outside: Outside) -> NodeTold:
    """Return what is known of a node: whether its agent is connected, and whether it still is a node in service."""
    view = outside.nodes.view(node)
    return NodeTold(
        node=node,
        connected=outside.sessions(node) is not None,
        lost=view is None or view.ready is not True,
        out_of_service=view is not None and view.out_of_service,
    )
