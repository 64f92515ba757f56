"""Detect the end of an app-class fault: the end of everything that it hit, by an event and never by a guess at time."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.health.state.attribution import Attribution, AttributionResult
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerSummary
from kubemend.agent.sources.program_starts import ProgramStarts
from kubemend.common import aio

log = structlog.get_logger(__name__)

Holders = Callable[[], Awaitable[Sequence[ContainerRef] | None]]
"""Return the containers that hold a device; None if kubelet could not be asked."""

_ALIVE = (ContainerState.RUNNING, ContainerState.CREATED)
_ENDS = (EventKind.STOPPED, EventKind.DELETED)


def waiter(
    found: Attribution,
    *,
    noticed_at: float,
    pid: int | None,
    events: ports.Events,
    processes: ports.Processes,
    holders: Holders,
    programs: ProgramStarts,
    now: Callable[[], float],
    process: ProcessFacts | None = None,
    renewed: AbstractSet[ContainerId] = frozenset(),
) -> Callable[[], Awaitable[None]]:
    """Record the running containers, and return a function that waits until all affected ones have ended.

    For a process in a pod that is its container, or the process itself (``process``; None: it has ended) if it ends
    earlier: a launcher may restart the program in its container. For a process outside all pods, or one that was put
    into a container, it is the process itself. If only the holders are known, it is all their containers.
    ``noticed_at`` is the Unix time of the finding. A container in ``renewed`` counts as ended, although it runs: its
    program has been restarted in it. So does one whose launcher has started another program since, by itself or for a
    round (``programs``).
    """
    gone = found.how is AttributionResult.PROCESS_GONE or (found.how is AttributionResult.PROCESS and process is None)
    if gone or found.how is AttributionResult.NO_HOLDER:
        return _nothing
    if found.how in (AttributionResult.PROCESS_OUTSIDE_PODS, AttributionResult.PROCESS_PUT_IN) and pid is not None:
        return functools.partial(processes.ended, pid, started=process.started if process is not None else 0.0)
    if found.how in (AttributionResult.HOLDERS_UNKNOWN, AttributionResult.PROCESS_FOREIGN):
        return functools.partial(
            wait_until_replaced, noticed_at, holders=holders, events=events, programs=programs, now=now
        )
    hit = found.restart or found.concerned
    running = {view.id for view in events.containers() if view.ref in hit and view.state in _ALIVE}

    async def stopped() -> None:
        await _stopped(running - renewed, since=noticed_at, events=events, programs=programs)

    if process is not None and found.how is AttributionResult.PROCESS:
        return lambda: aio.first_of(stopped(), _process_ended(process, processes=processes))
    return stopped


async def wait_until_replaced(
    moment: float,
    *,
    holders: Holders,
    events: ports.Events,
    programs: ProgramStarts,
    now: Callable[[], float],
    ask_again: float = 1.0,
) -> None:
    """Wait until no container that holds the device, nor the program of its launcher, is older than ``moment``.

    ``moment`` and ``now`` are Unix time.
    """
    old = await holders_older_than(moment, holders=holders, events=events, now=now, ask_again=ask_again)
    await _stopped({view.id for view in old}, since=moment, events=events, programs=programs)


async def holders_older_than(
    moment: float,
    *,
    holders: Holders,
    events: ports.Events,
    now: Callable[[], float],
    ask_again: float = 1.0,
) -> list[ContainerSummary]:
    """Return the device's running holders that are older than ``moment``; wait until the holders are known."""
    while (refs := await holders()) is None:  # noqa: ASYNC110 - the pod-resources API has no watch
        await asyncio.sleep(ask_again)
    return [
        view
        for view in events.containers()
        if view.ref in refs and view.state in _ALIVE and not view.is_newer(moment, now=now())
    ]


async def _nothing() -> None:
    return


async def _process_ended(process: ProcessFacts, *, processes: ports.Processes) -> None:
    """Wait until that very process has ended; indefinitely if it cannot be followed: its container's end counts."""
    try:
        if processes.is_alive(process):
            await processes.ended(process.pid, started=process.started)
    except OSError as error:
        log.warning("fault.process_not_followed", pid=process.pid, error=str(error))
        await asyncio.Event().wait()


async def _stopped(
    ids: AbstractSet[ContainerId], *, since: float, events: ports.Events, programs: ProgramStarts
) -> None:
    """Wait until each of these containers has ended, or runs a program that was started after ``since`` (Unix time)."""
    await asyncio.gather(*(aio.first_of(_ended(each, events=events), programs.since(each, since)) for each in ids))


async def _ended(container: ContainerId, *, events: ports.Events) -> None:
    async with events.subscribe() as changes:
        if all(view.id != container or view.state not in _ALIVE for view in events.containers()):
            return
        while (event := await changes.get()).container.id != container or event.kind not in _ENDS:
            pass
