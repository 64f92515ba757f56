"""Follow containers that are being killed: still ending, or stuck (``agent.restart.stuck``)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import stuck

log = structlog.get_logger(__name__)

_PROOF: Final = 2
"""Kills without effect that count as proof where the states of threads cannot be read."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Intervals in seconds.

    ``first`` before the first poll (most have ended by then), ``each`` between two, ``window`` for proof. ``memory``:
    before the first query for the device memory that is left, and between two.
    """

    first: float = 2.0
    each: float = 1.0
    window: float = stuck.WINDOW
    memory: float = 0.5


class Death:
    """The end of one container, which may take several kills."""

    def __init__(
        self,
        container: ContainerId,
        *,
        runtime: ports.ContainerStatuses,
        processes: ports.ContainerProcesses,
        poll_intervals: PollIntervals | None = None,
    ) -> None:
        self._container = container
        self._runtime = runtime
        self._processes = processes
        self._poll_intervals = poll_intervals if poll_intervals is not None else PollIntervals()
        self._pids: frozenset[int] = frozenset()
        self._still: stuck.UnchangedThreads | None = None

    @property
    def is_stuck(self) -> bool:
        """Return whether it is proven that the container no longer ends."""
        return stuck.is_stuck(self._still, window=self._poll_intervals.window)

    @property
    def where(self) -> str:
        """Describe the stuck threads and where they are stuck."""
        threads = self._still.threads if self._still is not None else ()
        return ", ".join(str(thread) for thread in threads if thread.state == "D")

    async def follow(self, *, on_progress: Callable[[], None]) -> None:
        """Poll until cancelled; call ``on_progress`` at each poll that shows a change."""
        await asyncio.sleep(self._poll_intervals.first)
        while True:
            try:
                threads = await self._read_threads()
            except (cri_errors.CriError, OSError) as error:
                log.debug("restart.not_followed", container=self._container, error=str(error))
            else:
                self._take(threads, on_progress=on_progress)
            await asyncio.sleep(self._poll_intervals.each)

    async def _read_threads(self) -> tuple[Thread, ...]:
        if not self._pids:
            pid = (await self._runtime.container_status(self._container)).pid
            if not pid:
                return ()
            self._pids = await asyncio.to_thread(self._processes.container_pids, pid, of=self._container)
        return await asyncio.to_thread(self._processes.threads, self._pids)

    def _take(self, threads: tuple[Thread, ...], *, on_progress: Callable[[], None]) -> None:
        before, self._still = self._still, stuck.follow(self._still, threads, now=asyncio.get_running_loop().time())
        if before is None or before.threads != threads:
            on_progress()


class Deaths:
    """The ends of the containers that one restart kills. ``processes`` None: their threads cannot be read."""

    def __init__(
        self,
        *,
        runtime: ports.ContainerStatuses,
        processes: ports.ContainerProcesses | None,
        poll_intervals: PollIntervals,
        on_progress: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._processes = processes
        self._poll_intervals = poll_intervals
        self._on_progress = on_progress
        self._all: dict[ContainerId, Death] = {}
        self._in_vain = 0

    async def follow(self, container: ContainerId) -> None:
        """Follow one, whose threads can be read, until cancelled. It may be killed several times."""
        assert self._processes is not None
        if (death := self._all.get(container)) is None:
            death = self._all[container] = Death(
                container, runtime=self._runtime, processes=self._processes, poll_intervals=self._poll_intervals
            )
        await death.follow(on_progress=self._on_progress)

    def killed_in_vain(self) -> bool:
        """Note a kill without effect; return whether it is proven that one of the containers no longer ends.

        The proof is the state of its threads. Where they cannot be read it is the second such kill, if the runtime has
        answered in between.
        """
        self._in_vain += 1
        if self._processes is None:
            return self._in_vain >= _PROOF
        return any(death.is_stuck for death in self._all.values())

    @property
    def where_stuck(self) -> str:
        """Describe the stuck threads, and where they are stuck; empty if none is."""
        return "; ".join(death.where for death in self._all.values() if death.is_stuck)
