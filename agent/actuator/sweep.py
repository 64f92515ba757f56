"""The cleaning that a restart does between the end of the old containers and the start of the new ones.

It holds nothing up for long, and what fails is told and keeps nobody from starting.
"""

import asyncio
import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.actuator import shm as emptying
from agent.restart import shm
from common.own_process import Calls, ProcessEndedError

log = structlog.get_logger(__name__)

_SLACK = 0.5  # seconds after which a cleaning that should have ended by itself is left behind


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: ``others`` for the last of the old containers to end once the first could be followed, ``work`` for the
    cleaning itself."""

    others: float = 1.0
    work: float = 5.0


@dataclass(frozen=True, slots=True)
class Broom:
    """How this node's shared memory is reached: through the runtime behind a socket, the host's /proc and cgroups.

    ``calls`` is where it is reached: what a process of the pod has open may be on a file system that hangs. Without a
    socket, or ``calls``, nothing is emptied.
    """

    socket_path: str = ""
    calls: Calls | None = None
    proc: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    patience: Patience = Patience()

    async def empty(self, place: shm.Place) -> str:
        """Empty a place; return what came of it, for people."""
        if self.calls is None:
            return "not emptied: this agent does not reach it"
        until = time.monotonic() + self.patience.work
        work = functools.partial(
            emptying.empty_behind,
            self.socket_path,
            place,
            proc=self.proc,
            cgroup_root=self.cgroup_root,
            until=until,
        )
        try:
            return await self.calls.call(work, who=place.cgroup, timeout=self.patience.work + _SLACK)
        except TimeoutError as error:
            return f"not emptied: {error}" if str(error) else f"not emptied within {self.patience.work:g} s"
        except ProcessEndedError as error:
            return f"not emptied: {error}"
        except Exception as error:
            log.exception("shm.failed", directory=place.directory)
            return f"not emptied: {error!r}"


class Sweep:
    """What one restart cleans, once: when the last of the old containers is dead, and before anything new runs."""

    def __init__(
        self, broom: Broom, *, places: Iterable[shm.Place | shm.NotOurs] = (), waits_for: Iterable[str] = ()
    ) -> None:
        """``waits_for`` are the containers that are replaced side by side, if there are several."""
        self._broom = broom
        self._places = tuple(dict.fromkeys(places))
        self._alive = set(waits_for)
        self._all_dead = asyncio.Event()
        self._once = asyncio.Lock()
        self._said = ""

    @property
    def note(self) -> str:
        """What came of it, for people."""
        return f"{shm.INSIDE}: {self._said or 'not emptied: the successor did not wait for it'}"

    async def before_start(self, container: str, *, is_first: bool) -> None:
        """Call when the old container of that name is dead, before its successor runs.

        ``is_first`` is False when something new has run already, so that what is there may be its own.
        """
        self._alive.discard(container)
        if not self._alive:
            self._all_dead.set()
        async with self._once:
            if not self._said:
                self._said = (
                    await self._clean() if is_first else "not emptied: a container of kubelet's has run already"
                )
                log.info("shm", container=container, outcome=self._said)

    async def _clean(self) -> str:
        try:
            async with asyncio.timeout(self._broom.patience.others):
                await self._all_dead.wait()
        except TimeoutError:
            return f"not emptied: {', '.join(sorted(self._alive))} has not ended"
        said = []
        for place in self._places:
            if isinstance(place, shm.NotOurs):
                said.append(f"not emptied: {place.why}")
            else:
                said.append(await self._broom.empty(place))
        return "; ".join(said)
