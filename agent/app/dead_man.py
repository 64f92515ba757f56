"""The dead man's switch: what this agent has frozen does not stand still for ever when no agent comes after it.

A process beside us learns of our end by a pipe, in a session of its own and outside our cgroup, where it can be: the
kernel may kill all of ours at once, and a runtime ends every process of a container whose first one has ended. It waits
for ``SECONDS``, then lets go what is frozen, unless another agent is in charge by then (``agent.app.charge``).
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog

from agent.app import charge, last_resort, last_watch
from agent.cri import afterlife
from common import aio, process

log = structlog.get_logger(__name__)

SECONDS: Final = 60.0
"""After an agent's end until what it has frozen is let go, where none comes after it."""
_LOOK_AGAIN = 0.2
_WAIT_FOR_CHARGE = 10.0
"""Seconds that an agent waits for whoever is in charge: one that lets go what is frozen takes no longer."""
_END_SECONDS = 1.0


class DeadMan:
    """Watches over this agent from outside, and says who is in charge. Enter it before anything is frozen."""

    def __init__(
        self,
        *,
        state_dir: Path,
        socket: str,
        owner: str,
        cgroup_root: Path,
        proc: Path,
        seconds: float = SECONDS,
    ) -> None:
        self._state_dir = state_dir
        self._cgroup_root = cgroup_root
        self._command = process.helper_command(
            last_watch.__name__,
            f"{seconds:g}",
            str(cgroup_root),
            *process.helper_command(
                last_resort.__name__, str(state_dir.absolute()), socket, owner, str(cgroup_root), str(proc)
            ),
        )
        self._watch: subprocess.Popen[bytes] | None = None
        self._in_charge = asyncio.Event()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Be watched for the length of the block. What stands still at its end is as if we had died."""
        self._start()
        try:
            yield
        finally:
            await self._leave()

    async def take_charge(self) -> None:
        """Wait until we are in charge, some seconds at most: another agent of this state may be on its way out."""
        try:
            async with asyncio.timeout(_WAIT_FOR_CHARGE):
                await self._in_charge.wait()
        except TimeoutError:
            log.warning("dead_man.not_in_charge", state_dir=str(self._state_dir))

    async def run(self) -> None:
        """Be in charge as soon as nobody else is, and have a watch whatever becomes of the last one, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hold_charge(), name="charge")
            tasks.create_task(self._keep_watch(), name="last-watch")

    async def _hold_charge(self) -> None:
        while True:
            with charge.taken(self._state_dir) as mine:
                if mine:
                    self._in_charge.set()
                    await asyncio.Event().wait()
            await asyncio.sleep(_LOOK_AGAIN)  # nobody tells when a lock is given back

    async def _keep_watch(self) -> None:
        backoff = aio.Backoff(first=0.5, limit=60.0)
        while True:
            if self._watch is not None:
                await _ended(self._watch)
                self._watch.wait()
                log.warning("dead_man.watch_has_ended", returncode=self._watch.returncode)
            await backoff.wait()
            self._start()

    def _start(self) -> None:
        """Start the watch. Where that cannot be done this is logged: all else works as ever."""
        self._close()
        try:
            self._watch = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._watch = None
            log.warning("dead_man.unavailable", error=str(error))
            return
        afterlife.leave_cgroup(self._watch.pid, root=self._cgroup_root)

    def _close(self) -> None:
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()

    async def _leave(self) -> None:
        """Have the watch end, where nothing stands still; else it outlives us."""
        watch = self._watch
        self._close()
        if watch is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await _ended(watch)
                watch.wait()


async def _ended(child: "subprocess.Popen[bytes]") -> None:
    """Wait for a child's end by a pidfd: no child watcher, no signal handler, no other child touched."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(child.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
