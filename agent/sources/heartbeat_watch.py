"""One container's heartbeat, looked at for as long as the container runs.

A look is a few system calls, and few looks are enough. They are made in a process of their own (``OwnProcess``), for a
pod can have them last for ever; what is not answered in time could not be told.

To be told of each touch instead (inotify) would wake the agent as often as the container touches the file.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import structlog

from agent.cri.answers import ContainerInfo
from agent.cri.errors import CriError
from agent.health import heartbeat
from agent.health.heartbeat import Blank, Heart, Look, Mark, Pulse
from agent.model.hangs import Hang
from agent.model.workloads import ContainerId, ContainerView
from agent.restart import options
from agent.sources import container_inside, thread_states
from agent.sources.container_inside import CannotLookInsideError, Where
from agent.sources.processes import ProcFs
from common import contained
from common.own_process import Calls

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 2.0
_TELL_AGAIN = 600.0
"""Seconds after which a hang that stands is told once more: what has kept it from being mended may be over."""


class Runtime(Protocol):
    """The one call that is needed (``agent.cri.client.CriClient``)."""

    async def container_info(self, container_id: ContainerId) -> ContainerInfo: ...


class Watch:
    """Looks at one container. ``heart`` is what is known; ``obstacle`` why this agent can look into none."""

    def __init__(
        self,
        view: ContainerView,
        wish: options.Heartbeat,
        *,
        heart: Heart,
        runtime: Runtime,
        processes: ProcFs,
        calls: Calls,
        changed: Callable[["Watch"], None],
        on_hang: Callable[[Hang], None],
    ) -> None:
        self.view = view
        self.wish = wish
        self.heart = heart
        self.obstacle = ""
        self._runtime = runtime
        self._processes = processes
        self._changed = changed
        self._on_hang = on_hang
        self._calls = calls
        self._where: Where | None = None
        self._one_look = asyncio.Lock()
        self._why_unknown = ""
        self._told_at: float | None = None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            with contained.within(contained.Part.HEARTBEAT, self.view.ref):
                await self.look()
            await asyncio.sleep(heartbeat.until_next_look(self.heart, timeout=self.wish.timeout))

    async def look(self) -> Heart:
        """Look now; return what is known then. A hang is told on the way."""
        async with self._one_look:
            before, began = self.heart, time.monotonic()
            slept = time.clock_gettime(time.CLOCK_BOOTTIME) - began
            sight = await self._sight()
            look = Look(began=began, ended=time.monotonic(), slept=slept, sight=sight)
            heart = heartbeat.after(before, look, timeout=self.wish.timeout)
            if heart.pulse is Pulse.HUNG and self._is_to_be_told(began):
                hang = await self._examine(heart)
                if hang is None:
                    heart = heartbeat.after(before, replace(look, sight=Blank.PAUSED), timeout=self.wish.timeout)
                else:
                    self._told_at = began
                    self._on_hang(hang)
            if heart.pulse is not Pulse.HUNG:
                self._told_at = None
            self.heart = heart
            self._changed(self)
        return heart

    def _is_to_be_told(self, now: float) -> bool:
        return self._told_at is None or now - self._told_at >= _TELL_AGAIN

    async def _sight(self) -> Mark | Blank:
        """Return what the file shows; UNKNOWN, with the reason in the log, when that could not be told."""
        obstacle = why = ""
        try:
            return await self._look_inside()
        except CannotLookInsideError as error:
            obstacle = why = str(error)
        except TimeoutError as error:
            why = str(error) or f"the file system did not answer within {_LOOK_SECONDS:g} s"
        except (OSError, CriError) as error:
            why = str(error)
        finally:
            self.obstacle = obstacle
            if why and why != self._why_unknown:
                log.warning("heartbeat.unknown", container=str(self.view.ref), file=self.wish.file, why=why)
            self._why_unknown = why
        return Blank.UNKNOWN

    async def _look_inside(self) -> Mark | Blank:
        if self._where is None:
            info = await self._runtime.container_info(self.view.id)
            if info.pid is None:
                raise ProcessLookupError("the runtime does not tell the container's main process")
            self._where = Where(pid=info.pid, container_id=self.view.id, processes=self._processes)
        try:
            return await self._call(functools.partial(container_inside.look, self._where, self.wish.file))
        except ProcessLookupError:
            self._where = None  # the runtime may know better
            raise

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._calls.call(work, who=self.view.ref.pod.uid, timeout=_LOOK_SECONDS)

    async def _examine(self, heart: Heart) -> Hang | None:
        """Gather what people will want to know; None when the container cannot be blamed, or not be told about."""
        assert self._where is not None
        try:
            threads, most_telling = await self._call(functools.partial(container_inside.examine, self._where))
        except (OSError, CannotLookInsideError) as error:
            log.warning("heartbeat.not_examined", container=str(self.view.ref), error=str(error))
            return None
        if thread_states.are_stopped(threads):
            log.info("heartbeat.stopped_by_somebody", container=str(self.view.ref))
            return None
        return Hang(
            target=self.view.ref,
            container_id=self.view.id,
            file=self.wish.file,
            silent=heart.silent,
            timeout=self.wish.timeout,
            observed_at=time.time(),
            doing=thread_states.summary(threads, most_telling),
            threads=most_telling,
        )
