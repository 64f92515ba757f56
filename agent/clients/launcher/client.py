"""Order restarts of programs from their launchers, each call in a ``SideProcess`` and with a deadline."""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.launcher import exchange
from kubemend.agent.clients.launcher.exchange import LauncherAddress, NoAnswerError
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, process
from kubemend.agent.restart.process import FOLLOW_SECONDS, Launcher, LauncherUnavailable, State
from kubemend.common.side_process import Calls

ANSWER_SECONDS: Final = 1.0
"""For any answer of a launcher, which waits for nothing before it answers."""
_WATCH_SECONDS: Final = 2.0
"""For the state that an order leads to, before the order is repeated."""
_SLACK: Final = 0.5
_FIRST: Final = functools.partial(exchange.in_states, frozenset[State]())
_NO_PID: Final = "the runtime does not return the container's main process"


class Processes(Protocol):
    """The host's processes (``agent.sources.processes.ProcFs``)."""

    @property
    def root(self) -> Path: ...
    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        """Return the processes of the container that a process belongs to. Raises OSError."""


class LauncherClient:
    """Speaks with the launchers in this node's containers. No call fails: a launcher that cannot be used is
    LauncherUnavailable."""

    def __init__(self, *, calls: Calls, processes: Processes) -> None:
        self._calls = calls
        self._processes = processes

    async def status(self, container: ContainerStatus) -> Launcher | LauncherUnavailable:
        """Ask the launcher of a running container for its state."""
        return await self._exchange(container, process.STATUS_REQUEST)

    async def stop(self, container: ContainerStatus, intent: intents.ProcessIntent) -> Launcher | LauncherUnavailable:
        """Order the stop of the program, or repeat the order; return the state when it is dead, or after 2 s."""
        passing = functools.partial(exchange.in_states, frozenset({State.STOPPING}))
        return await self._exchange(container, process.stop_request(intent), passing=passing, timeout=_WATCH_SECONDS)

    async def release(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> Launcher | LauncherUnavailable:
        """Have the program started; return the state when it runs, or after 2 s."""
        passing = functools.partial(exchange.in_states, frozenset({State.STOPPING, State.HELD}))
        return await self._exchange(container, process.release_request(intent), passing=passing, timeout=_WATCH_SECONDS)

    async def discard(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> Launcher | LauncherUnavailable:
        """Have the container ended instead, since nothing may start on its devices; return the launcher's state.

        Launchers that do not know this request do not answer, and start the program after the hold.
        """
        return await self._exchange(container, process.discard_request(intent))

    async def follow(
        self, container: ContainerStatus, *, known: Launcher | None, hold: float
    ) -> Launcher | LauncherUnavailable:
        """Return the state when it is another one than ``known``, or after 20 s.

        If the program fails in that time, its launcher waits ``hold`` seconds for ``decide``; 0: it does not wait.
        """
        passing = functools.partial(exchange.is_known, known)
        request = process.follow_request(hold=hold)
        follower = f"{container.id} followed"
        return await self._exchange(container, request, passing=passing, timeout=FOLLOW_SECONDS, owner=follower)

    async def decide(self, container: ContainerStatus, program: int, *, ends: bool) -> Launcher | LauncherUnavailable:
        """Have the launcher restart its failed program by its own rule, or end the container; return its state."""
        return await self._exchange(container, process.verdict_request(program, ends=ends))

    async def remains(self, container: ContainerStatus, launcher: Launcher) -> tuple[int, ...] | LauncherUnavailable:
        """Return the processes of a program that live although its launcher reports that it is dead."""
        if (address := self._address(container)) is None:
            return LauncherUnavailable(_NO_PID)
        try:
            pids = await asyncio.to_thread(self._processes.container_pids, address.pid, of=container.id)
            return await asyncio.to_thread(
                exchange.remains, address, spare=launcher.spare, pids=pids, others=launcher.others
            )
        except OSError as error:
            return LauncherUnavailable(f"the container's processes cannot be read: {error}")

    async def _exchange(
        self,
        container: ContainerStatus,
        request: bytes,
        *,
        passing: exchange.Passing = _FIRST,
        timeout: float = ANSWER_SECONDS,
        owner: str = "",
    ) -> Launcher | LauncherUnavailable:
        address = self._address(container)
        if address is None:
            return LauncherUnavailable(_NO_PID)
        work: Callable[[], Launcher] = functools.partial(
            exchange.exchange,
            address,
            request,
            passing=passing,
            timeout=timeout,
            least=ANSWER_SECONDS,
        )
        longest = max(timeout, _WATCH_SECONDS) + _SLACK
        try:
            return _aged(await self._calls.call(work, owner=owner or container.id, timeout=longest))
        except NoAnswerError as error:
            return LauncherUnavailable(str(error))
        except TimeoutError:
            return LauncherUnavailable(f"the container's file system did not answer within {longest:g} s")
        except OSError as error:
            return LauncherUnavailable(f"the launcher could not be asked: {error}")

    def _address(self, container: ContainerStatus) -> LauncherAddress | None:
        if container.pid is None:
            return None
        return LauncherAddress(
            container.pid, ContainerId(container.id), process.folder(container.runtime_env), self._processes.root
        )


def _aged(found: Launcher) -> Launcher:
    """Return an answer with its program's present age: a busy agent, or one that follows, reads it seconds later."""
    delay = time.monotonic() - found.answered if found.answered is not None else 0.0
    return replace(found, age=found.age + delay, answered=None)
