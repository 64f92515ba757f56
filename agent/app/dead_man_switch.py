"""The dead man's switch: containers that this agent has frozen are released even if no agent follows.

A helper process detects the agent's end by a pipe. It runs in a session of its own and, where possible, outside the
agent's cgroup, because the kernel may kill the whole cgroup at once, and a runtime ends every process of a container
whose first one has ended. It completes interrupted swaps immediately, and releases containers held for rounds after
``SECONDS``, unless another agent has the node lock by then (``agent.app.node_lock``).
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.app import last_resort, last_watch, node_lock
from kubemend.agent.clients.cri import connection_drain
from kubemend.agent.model import rounds
from kubemend.common import aio, process

log = structlog.get_logger(__name__)

SECONDS: Final = rounds.AGENT_AWAY_SECONDS
_RETRY_SECONDS = 0.2
_LOCK_TIMEOUT = 10.0
"""Seconds that an agent waits for the node lock; a process that releases frozen containers needs no longer."""
_END_SECONDS = 1.0


class DeadManSwitch:
    """Runs the helper process and holds the node lock. Enter it before anything is frozen."""

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
            str(cgroup_root),
            owner,
            *process.helper_command(
                last_resort.__name__,
                f"{seconds:g}",
                str(state_dir.absolute()),
                socket,
                owner,
                str(cgroup_root),
                str(proc),
            ),
        )
        self._watch: subprocess.Popen[bytes] | None = None
        self._locked = asyncio.Event()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run the helper process for the length of the block.

        Containers still frozen at its end are handled as if the agent had died.
        """
        self._start()
        try:
            yield
        finally:
            await self._leave()

    async def take_charge(self) -> None:
        """Wait, some seconds at most, for the node lock: another agent with this state may be ending."""
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT):
                await self._locked.wait()
        except TimeoutError:
            log.warning("dead_man_switch.not_lock_holder", state_dir=str(self._state_dir))

    async def run(self) -> None:
        """Take the node lock when it is free, and restart the helper process whenever it ends, indefinitely."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hold_charge(), name="charge")
            tasks.create_task(self._keep_watch(), name="last-watch")

    async def _hold_charge(self) -> None:
        while True:
            with node_lock.acquire(self._state_dir) as mine:
                if mine:
                    self._locked.set()
                    await asyncio.Event().wait()
            await asyncio.sleep(_RETRY_SECONDS)  # the release of a lock causes no event

    async def _keep_watch(self) -> None:
        backoff = aio.Backoff(first=0.5, limit=60.0)
        while True:
            if self._watch is not None:
                await _ended(self._watch)
                self._watch.wait()
                log.warning("dead_man_switch.watch_ended", returncode=self._watch.returncode)
            await backoff.wait()
            self._start()

    def _start(self) -> None:
        """Start the helper process. A failure is logged and affects nothing else."""
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
            log.warning("dead_man_switch.unavailable", error=str(error))
            return
        connection_drain.leave_cgroup(self._watch.pid, root=self._cgroup_root)

    def _close(self) -> None:
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()

    async def _leave(self) -> None:
        """End the helper process if nothing is frozen; otherwise it outlives the agent."""
        watch = self._watch
        self._close()
        if watch is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await _ended(watch)
                watch.wait()


async def _ended(child: "subprocess.Popen[bytes]") -> None:
    """Wait for a child's end by a pidfd: no child watcher, no signal handler, no effect on other children."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(child.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
