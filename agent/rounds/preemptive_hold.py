"""Hold the container that kubelet starts for a failed gang member until the controller has decided about the gang.

Kubelet may start a container between a member's end and the round's order for it. It is held as in a round. This is not
journalled: the marks on frozen containers suffice for the next agent to thaw them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import structlog

from kubemend.agent.actuator.hold.hold_set import Freezer, HoldSet
from kubemend.agent.model.workloads import ContainerRef, ContainerSummary, PodUid
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.rounds.pod_hold import PodHolder

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Guard:
    holding: HoldSet
    taken_over: asyncio.Event = field(default_factory=asyncio.Event)


class PreemptiveHolds:
    """Hold in place of failed containers, one guard for each container, because each fault gets its own answer."""

    def __init__(self, *, dependencies: Dependencies, freezer: Freezer) -> None:
        self._dependencies = dependencies
        self._freezer = freezer
        self._guards: dict[ContainerRef, _Guard] = {}

    @contextlib.asynccontextmanager
    async def hold(self, failed: ContainerSummary) -> AsyncIterator[asyncio.Event]:
        """Hold the container that kubelet starts in place of a failed one, during the block.

        Yields the event that is set when a round takes the hold over (``transfer_to``). Otherwise the container is
        released at the end of the block.
        """
        pod = failed.ref.pod
        if (earlier := self._guards.get(failed.ref)) is not None:  # it failed again before the first answer
            yield earlier.taken_over
            return
        holding = HoldSet(self._freezer, mark=pod.uid, names={failed.ref.name})
        guard = self._guards[failed.ref] = _Guard(holding)
        holder = PodHolder(pod, dependencies=self._dependencies, holding=holding, on_deleted=lambda: _release(holding))
        try:
            async with holder.at_work():
                await holder.catch_up(failed)
                yield guard.taken_over
        finally:
            del self._guards[failed.ref]
            _release(holding)

    def transfer_to(self, pod: PodUid, *, by: HoldSet) -> None:
        """Transfer a pod's holds, including those in progress, to a round's hold set."""
        for failed, guard in self._guards.items():
            if failed.pod.uid == pod and guard.holding.on:
                by.select(by.names | guard.holding.names)
                guard.holding.transfer_to(by)
                guard.taken_over.set()


def _release(holding: HoldSet) -> None:
    if runs := holding.release():
        log.info("round.guard_ended", pod_uid=holding.mark, containers=sorted(runs))
