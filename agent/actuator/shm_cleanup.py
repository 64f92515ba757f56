"""Clean up between the end of the old containers and the start of the new ones.

Cleanup is time-boxed. Failures are reported and do not block the start.
"""

import asyncio
import functools
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from kubemend.agent.actuator import shm as emptying
from kubemend.agent.restart import shm
from kubemend.common import contained
from kubemend.common.contained import Part
from kubemend.common.side_process import Calls, ProcessEndedError

log = structlog.get_logger(__name__)

_SLACK = 0.5  # seconds after which a cleanup that should have ended by itself is abandoned


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds: ``others`` for the other old containers to end after the first, ``work`` for the cleanup."""

    others: float = 1.0
    work: float = 5.0


@dataclass(frozen=True, slots=True)
class ShmCleaner:
    """Access to this node's shared memory: through the runtime behind a socket, the host's /proc and cgroups.

    ``calls`` runs the work in another process, because a process of the pod may have files open on a file system that
    hangs. Without a socket, or ``calls``, nothing is emptied.
    """

    socket_path: str = ""
    calls: Calls | None = None
    proc: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    timeouts: Timeouts = Timeouts()

    async def empty(self, place: shm.Place) -> str:
        """Empty a place; return a description of the result for people."""
        if self.calls is None:
            return "not emptied: this agent has no access to it"
        until = time.monotonic() + self.timeouts.work
        work = functools.partial(
            emptying.empty_for_runtime,
            self.socket_path,
            place,
            proc=self.proc,
            cgroup_root=self.cgroup_root,
            until=until,
        )
        try:
            with contained.within(
                Part.CONTAINER, f"{place.directory} of {place.cgroup}", passing=(TimeoutError, ProcessEndedError)
            ) as failing:
                return await self.calls.call(work, owner=place.cgroup, timeout=self.timeouts.work + _SLACK)
        except TimeoutError as error:
            return f"not emptied: {error}" if str(error) else f"not emptied within {self.timeouts.work:g} s"
        except ProcessEndedError as error:
            return f"not emptied: {error}"
        assert failing.error is not None
        return f"not emptied: {contained.describe(failing.error)}"


class ShmCleanup:
    """The cleanup of one restart, done once: when all old containers are dead, and before anything new runs."""

    def __init__(self, shm_cleaner: ShmCleaner, request: shm.Request) -> None:
        self._cleaner = shm_cleaner
        self._places = tuple(dict.fromkeys(request.places))
        self._alive = set(request.waits_for)
        self._all_dead = asyncio.Event()
        self._once = asyncio.Lock()
        self._result = ""

    @property
    def note(self) -> str:
        """Return a description of the result, for people."""
        return f"{shm.INSIDE}: {self._result or 'not emptied: the successor did not wait for it'}"

    async def before_start(self, container: str, *, is_first: bool) -> None:
        """Clean up once. Call when the old container of that name is dead, before its successor runs.

        ``is_first`` is False if a new container has run already, so that the files may be its own.
        """
        self._alive.discard(container)
        if not self._alive:
            self._all_dead.set()
        async with self._once:
            if not self._result:
                self._result = await self._clean() if is_first else "not emptied: kubelet's container has run already"
                log.info("shm", container=container, outcome=self._result)

    async def _clean(self) -> str:
        try:
            async with asyncio.timeout(self._cleaner.timeouts.others):
                await self._all_dead.wait()
        except TimeoutError:
            return f"not emptied: {', '.join(sorted(self._alive))} has not ended"
        results = []
        for place in self._places:
            if isinstance(place, shm.NotOurs):
                results.append(f"not emptied: {place.reason}")
            else:
                results.append(await self._cleaner.empty(place))
        return "; ".join(results)
