"""Read one container's heartbeat file periodically while the container runs.

Each read takes a few system calls, and few reads are enough. They run in a process of their own (``OwnProcess``),
because a pod can make them block indefinitely. A read that times out counts as unknown. inotify is not used, because it
would wake the agent each time the container touches the file.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.health.state import heartbeat
from kubemend.agent.health.state.heartbeat import Blank, HeartbeatState, HeartbeatStatus, Mark, Poll
from kubemend.agent.health.state.next_step import FileCheck
from kubemend.agent.model.hangs import Hang
from kubemend.agent.model.workloads import ContainerSummary
from kubemend.agent.restart import options
from kubemend.agent.sources import container_inside, thread_states
from kubemend.agent.sources.container_inside import CannotInspectError, MainProcess
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import contained
from kubemend.common.side_process import Calls

log = structlog.get_logger(__name__)

T = TypeVar("T")

_READ_SECONDS = 2.0
_REPORT_AGAIN = 600.0
"""Seconds after which a persisting hang is reported again: the obstacle to its fix may be gone."""


class Watch:
    """Watches one container. ``state`` is its known state; ``obstacle`` is why this agent can inspect no container."""

    def __init__(
        self,
        view: ContainerSummary,
        config: options.Heartbeat,
        *,
        state: HeartbeatState,
        runtime: ports.ContainerStatuses,
        processes: ProcFs,
        calls: Calls,
        changed: Callable[["Watch"], None],
        on_hang: Callable[[Hang], None],
        on_poll: Callable[[ContainerSummary, FileCheck], None],
    ) -> None:
        self.view = view
        self.config = config
        self.state = state
        self.obstacle = ""
        self._runtime = runtime
        self._processes = processes
        self._changed = changed
        self._on_hang = on_hang
        self._on_poll = on_poll
        self._calls = calls
        self._main: MainProcess | None = None
        self._started_at: float | None = None
        self._one_poll = asyncio.Lock()
        self._unknown_reason = ""
        self._reported_at: float | None = None
        self._restarts = 0

    def begin_again(self) -> None:
        """Take the next heartbeat for the first one, and forget a check that has begun."""
        self._restarts += 1
        self.state = HeartbeatState()
        self._changed(self)

    async def run(self) -> None:
        """Read the file periodically, indefinitely."""
        while True:
            with contained.within(contained.Part.HEARTBEAT, self.view.ref):
                await self.poll()
            await asyncio.sleep(heartbeat.until_next_poll(self.state, timeout=self.config.timeout))

    async def poll(self) -> HeartbeatState:
        """Read the file now and return the new state. Reports a hang."""
        async with self._one_poll:
            before, restarts, began = self.state, self._restarts, time.monotonic()
            slept = time.clock_gettime(time.CLOCK_BOOTTIME) - began
            result = await self._check()
            poll = Poll(began=began, ended=time.monotonic(), slept=slept, result=result)
            self._on_poll(self.view, FileCheck(poll, unix=time.time(), started_at=self._started_at))
            state, hang = heartbeat.after(before, poll, timeout=self.config.timeout), None
            if state.status is HeartbeatStatus.HUNG and self._must_report(began):
                hang = await self._examine(state)
                if hang is None:
                    state = heartbeat.after(before, replace(poll, result=Blank.PAUSED), timeout=self.config.timeout)
            if self._restarts != restarts:  # the file may be the former program's
                return self.state
            if hang is not None:
                self._reported_at = began
                self._on_hang(hang)
            if state.status is not HeartbeatStatus.HUNG:
                self._reported_at = None
            self.state = state
            self._changed(self)
        return state

    def _must_report(self, now: float) -> bool:
        return self._reported_at is None or now - self._reported_at >= _REPORT_AGAIN

    async def _check(self) -> Mark | Blank:
        """Return the state of the file; UNKNOWN, with the reason in the log, when it cannot be read."""
        obstacle = reason = ""
        try:
            return await self._read_mark()
        except CannotInspectError as error:
            obstacle = reason = str(error)
        except TimeoutError as error:
            reason = str(error) or f"the file system did not answer within {_READ_SECONDS:g} s"
        except (OSError, CriError) as error:
            reason = str(error)
        finally:
            self.obstacle = obstacle
            if reason and reason != self._unknown_reason:
                log.warning("heartbeat.unknown", container=str(self.view.ref), file=self.config.file, reason=reason)
            self._unknown_reason = reason
        return Blank.UNKNOWN

    async def _read_mark(self) -> Mark | Blank:
        if self._main is None:
            info = (await self._runtime.container_status(self.view.id)).without_config()
            if info.pid is None:
                raise ProcessLookupError("the runtime does not return the container's main process")
            self._started_at = info.started_at / 1e9 if info.started_at > 0 else None
            self._main = MainProcess(pid=info.pid, container_id=self.view.id, processes=self._processes)
        try:
            return await self._call(functools.partial(container_inside.heartbeat_mark, self._main, self.config.file))
        except ProcessLookupError:
            self._main = None  # the runtime may know a newer pid
            raise

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._calls.call(work, owner=self.view.ref.pod.uid, timeout=_READ_SECONDS)

    async def _examine(self, state: HeartbeatState) -> Hang | None:
        """Collect the details of a hang; None when the container is paused on purpose, or cannot be inspected."""
        assert self._main is not None
        try:
            found = await self._call(functools.partial(container_inside.examine, self._main))
        except (OSError, CannotInspectError) as error:
            log.warning("heartbeat.examination_failed", container=str(self.view.ref), error=str(error))
            return None
        if found is None:
            log.info("heartbeat.container_paused", container=str(self.view.ref))
            return None
        threads, most_informative = found
        return Hang(
            target=self.view.ref,
            container_id=self.view.id,
            file=self.config.file,
            silent=state.silent,
            timeout=self.config.timeout,
            observed_at=time.time(),
            doing=thread_states.summary(threads, most_informative),
            threads=most_informative,
        )
