"""When is an app-class fault over? When what it hit has ended: an event, never a guess by time."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

from agent.cri.events import EventKind
from agent.engine import ports
from agent.health.attribution import Attribution, How
from agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerView
from agent.sources.processes import ProcFs

Holders = Callable[[], Awaitable[Sequence[ContainerRef] | None]]
"""Asks who holds a device; None when kubelet could not be asked."""

_NANOSECOND = 1e-9
_ALIVE = (ContainerState.RUNNING, ContainerState.CREATED)


def of(
    found: Attribution,
    *,
    noticed_at: float,
    pid: int | None,
    events: ports.Events,
    processes: ProcFs,
    holders: Holders,
) -> Callable[[], Awaitable[None]]:
    """Note what runs now, and return what waits until all of it has ended.

    For a process in a pod that is its container, for one outside all pods or put into one the process itself, and where
    only the holders are known all of their containers. ``noticed_at`` is the Unix time of the finding.
    """
    if found.how in (How.PROCESS_GONE, How.NO_HOLDER):
        return _nothing
    if found.how in (How.PROCESS_OUTSIDE_PODS, How.PROCESS_PUT_IN) and pid is not None:
        return functools.partial(processes.ended, pid)
    if found.how is How.HOLDERS_UNKNOWN:
        return functools.partial(older_than, noticed_at, holders=holders, events=events)
    hit = found.restart or found.concerned
    running = {view.id for view in events.containers() if view.ref in hit and view.state in _ALIVE}
    return functools.partial(_stopped, running, events=events)


async def older_than(
    moment: float,
    *,
    holders: Holders,
    events: ports.Events,
    ask_again: float = 1.0,
) -> None:
    """Wait until no container that holds the device is older than ``moment`` (Unix seconds)."""
    old = await older_holders(moment, holders=holders, events=events, ask_again=ask_again)
    await _stopped({view.id for view in old}, events=events)


async def older_holders(
    moment: float,
    *,
    holders: Holders,
    events: ports.Events,
    ask_again: float = 1.0,
) -> list[ContainerView]:
    """Return the running containers that hold the device and are older than ``moment``, once it can be told who do."""
    while (refs := await holders()) is None:  # noqa: ASYNC110 - the pod-resources API has no watch
        await asyncio.sleep(ask_again)
    return [
        view
        for view in events.containers()
        if view.ref in refs and view.state in _ALIVE and view.created_at * _NANOSECOND < moment
    ]


async def _nothing() -> None:
    return


async def _stopped(ids: set[ContainerId], *, events: ports.Events) -> None:
    async with events.subscribe() as changes:
        alive = {view.id for view in events.containers() if view.state in _ALIVE}
        left = ids & alive
        while left:
            event = await changes.get()
            if event.kind in (EventKind.STOPPED, EventKind.DELETED):
                left.discard(event.container.id)
