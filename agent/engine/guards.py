"""Kubelet's own successor of a member that has failed does not run before it is known what becomes of the gang.

Between the end of a member and the round's order for it kubelet may be faster. What it starts meanwhile is held as in a
round. Nothing of that is written down: the marks on what is frozen are enough for the next agent to let it go.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import structlog

from agent.actuator.holding import Holding
from agent.engine import ports
from agent.engine.catching import Catcher
from agent.model.workloads import ContainerRef, ContainerView, PodUid

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Guard:
    holding: Holding
    taken_over: asyncio.Event = field(default_factory=asyncio.Event)


class Guards:
    """The guards over what has failed, one for each container: their faults are answered one by one."""

    def __init__(self, *, outside: ports.Outside, freezer: ports.Freezer) -> None:
        self._outside = outside
        self._freezer = freezer
        self._guards: dict[ContainerRef, _Guard] = {}

    @contextlib.asynccontextmanager
    async def over(self, failed: ContainerView) -> AsyncIterator[asyncio.Event]:
        """Hold what somebody else starts in a container's place, for the length of the block.

        Yields what is set when a round has taken it over (``succeed``); what no round has is let go at the end.
        """
        pod = failed.ref.pod
        if (earlier := self._guards.get(failed.ref)) is not None:  # it has failed again, before anybody has answered
            yield earlier.taken_over
            return
        holding = Holding(self._freezer, mark=pod.uid, names={failed.ref.name})
        guard = self._guards[failed.ref] = _Guard(holding)
        catcher = Catcher(pod, outside=self._outside, holding=holding, on_deleted=lambda: _let_go(holding))
        try:
            async with catcher.at_work():
                await catcher.catch_up(failed)
                yield guard.taken_over
        finally:
            del self._guards[failed.ref]
            _let_go(holding)

    def succeed(self, pod: PodUid, *, by: Holding) -> None:
        """Have a round's holding take over what is held of a pod, and what is about to be."""
        for failed, guard in self._guards.items():
            if failed.pod.uid == pod and guard.holding.on:
                by.names |= guard.holding.names
                guard.holding.hand_on(by)
                guard.taken_over.set()


def _let_go(holding: Holding) -> None:
    if runs := holding.let_go():
        log.info("round.guard_ended", pod_uid=holding.mark, containers=sorted(runs))
