"""One round under way: pass events to the machine in batches, and its effects to agents and the API server."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from kubemend.common import contained
from kubemend.controller.coordinator import round_report
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.wire import Orders
from kubemend.controller.model import rounds
from kubemend.controller.model.members import NodeName, PodPhase, PodRef, PodUid
from kubemend.controller.model.rounds import FaultReported, MemberSeen, NodeChanged, PodGone, RoundEvent
from kubemend.controller.restarts.pod_replacer import Outcome
from kubemend.controller.rounds import machine, status
from kubemend.controller.rounds.states import Advance, MemberPhase, Round

log = structlog.get_logger(__name__)

_LINGER_SECONDS: Final = 10e-6
"""Seconds for each member: thousands of results arrive at once, and each advance costs time by the round's size."""
_STALLED_SECONDS: Final = 2.0
"""If a check of the deadlines is so late, this process was stopped or starved, and has not read its agents' reports."""


class RoundRunner:
    """Advance one round to its end. All calls return at once, on the event loop."""

    def __init__(
        self,
        first: Advance,
        *,
        orders: Orders,
        dependencies: Dependencies,
        over: Callable[["RoundRunner", tuple[FaultReported, ...]], None],
    ) -> None:
        """``over`` is called once, with the faults that must be decided about after the round."""
        self._round = first.round
        self._orders = orders
        self._dependencies = dependencies
        self._over = over
        self._events: list[RoundEvent] = []
        self._loop = asyncio.get_running_loop()
        self._flush: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        self._recreated: set[PodUid] = set()  # pods that the round has asked to delete
        self._is_put_off = False  # the last check of the deadlines
        self._awaited = 0  # members that have still to answer, as far as the round knows
        self.released_at: float | None = None
        self._perform(first)

    @property
    def round(self) -> Round:
        """Return the current state of the round."""
        return self._round

    @property
    def id(self) -> str:
        """Return the namespace and name of the round's object."""
        return self._round.ref.id

    @property
    def id_for_agents(self) -> str:
        """Return the id of the round in messages (``wire.round_id``)."""
        return self._orders.round_id

    @property
    def containers(self) -> tuple[str, ...]:
        """Return the containers that it restarts, if its request names some; none: those that restarts are for."""
        return self._orders.containers

    def submit(self, *events: RoundEvent) -> None:
        """Queue events and process them together with those that arrive at the same moment."""
        if self._ended:
            return
        self._events.extend(events)
        if len(self._events) == self._awaited:
            self._flush_in(0.0)
        elif self._flush is None:
            self._flush_in(_LINGER_SECONDS * len(self._round.members))

    def drop(self) -> None:
        """Leave the round as it is: another replica resumes it."""
        self._ended = True
        for timer in (self._flush, self._alarm):
            if timer is not None:
                timer.cancel()

    def _flush_in(self, seconds: float) -> None:
        if self._flush is not None:
            self._flush.cancel()
        self._flush = self._loop.call_later(seconds, self._advance)

    def _advance(self) -> None:
        self._flush = None
        events, self._events = self._events, []
        now = self._dependencies.now()
        with contained.within(contained.Part.ROUND, self.id) as work:
            self._perform(machine.advance(self._judged_later(now), events, now=now))
        if work.failed:
            self.give_up()

    def _judged_later(self, now: float) -> Round:
        """Return the round; after a stall of this process its deadlines are checked once its messages have been read.

        Members whose reports are still in the sockets would count as lost, and their pods would be deleted.
        """
        late = now - self._round.check_at
        self._is_put_off = late > _STALLED_SECONDS and not self._is_put_off
        if not self._is_put_off:
            return self._round
        log.warning("round.stalled", round=self.id, seconds=round(late, 1))
        return replace(self._round, check_at=now + self._round.limits.resend)

    def give_up(self) -> None:
        """Fail the round because of an internal error, and have agents release their members."""
        dependencies = self._dependencies
        self.drop()
        with contained.within(contained.Part.ROUND, self.id):
            self._forget_deletions()
            for effect in machine.abandon(self._round, reason=round_report.INTERNAL, now=dependencies.now()):
                self._do(effect)
        with contained.within(contained.Part.ROUND, self.id):
            restart = dependencies.restarts.restarts().get(self.id)
            before = restart.status if restart is not None else {}
            reason = "an internal error of the controller; see the traceback in its log"
            dependencies.restarts.set_status(
                self._round.ref,
                round_report.failed(before, reason=round_report.INTERNAL, message=reason, now=dependencies.now()),
            )
        with contained.within(contained.Part.ROUND, self.id):
            self._over(self, ())

    def _perform(self, advance: Advance) -> None:
        before, self._round = self._round, advance.round
        self._awaited = advance.round.count(MemberPhase.STOPPING, MemberPhase.RELEASING)
        if before.phase is not advance.round.phase:
            phases = {phase.value: count for phase, count in advance.round.tally.items() if count}
            log.info("round.phase", round=self.id, phase=advance.round.phase.value, members=phases)
        for effect in advance.effects:
            self._do(effect)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if advance.round.phase.is_final:
            self.drop()
            self._forget_deletions()
            self._over(self, advance.again)
        elif advance.wake_at is not None:
            self._alarm = self._loop.call_later(max(advance.wake_at - self._dependencies.now(), 0.0), self.submit)

    def _forget_deletions(self) -> None:
        """Have no pod deleted for a round that is over: its members may run."""
        for uid in self._recreated:
            self._dependencies.pod_replacer.forget(uid)

    def _do(self, effect: rounds.Effect) -> None:
        match effect:
            case rounds.Stop() | rounds.Release() | rounds.Abort():
                if isinstance(effect, rounds.Release) and self.released_at is None:
                    self.released_at = self._dependencies.now()
                node, message = self._orders.of(effect)
                session = self._dependencies.sessions(node)
                if session is not None:  # an agent that is not connected gets it again later
                    session.send(message)
            case rounds.Recreate():
                log.info("round.recreate", round=self.id, pod=str(effect.pod), reason=effect.reason, force=effect.force)
                self._dependencies.pod_replacer.recreate(effect)
                self._recreated.add(effect.pod.uid)
                if effect.device_failure:
                    gang, node = self._round.ref.gang, self._round.members[effect.pod.uid].member.node
                    self._dependencies.jobsets.left(gang, node=node, code=effect.reason, pod=effect.pod.uid)
            case rounds.Record():
                self._dependencies.restarts.set_status(self._round.ref, status.render(self._round))


def node_event(node: NodeName, *, dependencies: Dependencies, may_be_lost: bool = True) -> NodeChanged:
    """Return a node's state: whether its agent is connected, and whether the node is ready and in service.

    ``may_be_lost`` False: its agent's stream has ended, as it does when a token expires or the agent is upgraded.
    """
    view = dependencies.nodes.view(node)
    return NodeChanged(
        node=node,
        connected=dependencies.sessions(node) is not None,
        lost=may_be_lost and (view is None or view.ready is not True),
        out_of_service=view is not None and view.out_of_service,
    )


def replacement_events(pod: PodRef, outcome: Outcome, *, dependencies: Dependencies) -> tuple[RoundEvent, ...]:
    """Return the events about a pod that a round wanted to be replaced, in addition to those of the pods' watch.

    A failed pod whose index its Job has given up counts as completed: no new pod takes its place.
    """
    if outcome is Outcome.GONE:
        return (PodGone(pod.uid),)
    member = dependencies.members.by_uid(pod.uid) if outcome is Outcome.GIVEN_UP else None
    return (MemberSeen(replace(member, phase=PodPhase.SUCCEEDED)),) if member is not None else ()
