"""One round under way: events go to the machine in batches, its effects to agents and the API server."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from controller.app.outside import Outside
from controller.app.words import Orders
from controller.model import rounds
from controller.model.members import NodeName
from controller.model.rounds import FaultTold, NodeTold, RoundEvent
from controller.rounds import machine, status
from controller.rounds.states import Advance, Round

log = structlog.get_logger(__name__)

_LARGE: Final = 64
_LINGER_SECONDS: Final = 0.005  # thousands of answers come at once: a step of a large round costs about as much as 100


class Conducting:
    """Moves one round to its end. Plain calls on the event loop; nothing here waits."""

    def __init__(
        self,
        first: Advance,
        *,
        orders: Orders,
        outside: Outside,
        over: Callable[["Conducting", FaultTold | None], None],
    ) -> None:
        """``over`` is called once, with the fault because of which the gang must be restarted again, if any."""
        self._round = first.round
        self._orders = orders
        self._outside = outside
        self._over = over
        self._events: list[RoundEvent] = []
        self._loop = asyncio.get_running_loop()
        self._flush: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
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
        if self._flush is None:
            linger = _LINGER_SECONDS if len(self._round.members) > _LARGE else 0.0
            self._flush = self._loop.call_later(linger, self._look)

    def drop(self) -> None:
        """Leave the round where it stands: another replica goes on."""
        self._ended = True
        for timer in (self._flush, self._alarm):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        self._flush = None
        events, self._events = self._events, []
        self._perform(machine.advance(self._round, events, now=self._outside.now()))

    def _perform(self, advance: Advance) -> None:
        before, self._round = self._round, advance.round
        if before.phase is not advance.round.phase:
            log.info("round.phase", round=self.id, phase=advance.round.phase.value)
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
