"""Keep one gate shut until the old process of its restart has left its devices (``agent.restart.device_release``)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kubemend.agent.actuator import device_processes
from kubemend.agent.actuator.device_processes import Host
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.restart import device_release, intents, stuck
from kubemend.agent.restart.device_release import ReleaseCheck, ReleaseState
from kubemend.common import aio

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    ``before`` bounds the wait for the driver's list of processes before the stop, ``late`` the time for which that is
    still of use, ``answer`` each answer after the old processes' end. ``leave`` is the
    time for the old processes to leave, from when the successor could start; it restarts whenever they progress, up to
    ``longest``. ``stuck`` is how long an unkillable process must show no change.
    """

    before: float = 0.25
    late: float = 10.0
    answer: float = 1.0
    leave: float = 10.0
    longest: float = 600.0
    stuck: float = stuck.WINDOW


@dataclass(frozen=True, slots=True)
class _Signs:
    """Signs, from one poll, of whether the old processes are still leaving; ``memory`` in bytes."""

    pids: frozenset[int]
    threads: tuple[Thread, ...]
    memory: int

    def show_more_than(self, before: "_Signs") -> bool:
        """Return whether anything has changed since."""
        return (self.pids, self.threads) != (before.pids, before.threads) or self.memory < before.memory


class Gate:
    """The gate of one intent. It opens by itself, with a result."""

    def __init__(
        self,
        intent: intents.AnyIntent,
        *,
        devices: frozenset[DeviceId],
        before: "asyncio.Task[device_release.DeviceListing | None]",
        recorded: "asyncio.Task[Mapping[int, device_release.Process]]",
        host: Host,
        timeouts: Timeouts,
    ) -> None:
        self._restart = intent.id
        self._old = intent.old_ids
        self._devices = devices
        self._before = before
        self._recorded = recorded
        self._host = host
        self._timeouts = timeouts
        self._held: Sequence[device_release.Held] = ()
        self._worth_asking = asyncio.Event()
        self._due_at: float | None = None
        self._signs: _Signs | None = None
        self.left = 0
        """How much memory the old processes had on the devices at the last poll, in bytes; 0: none, or unknown."""
        self._polled_at = 0.0
        self._unchanged = self._watched = 0.0  # seconds since a change, and since the successor could start
        self._opening = asyncio.create_task(self._decide(), name=f"gate {intent.id}")

    @property
    def was_occupied(self) -> bool:
        """Return whether a process of the old container was on its devices."""
        return bool(self._held)

    @property
    def opening(self) -> "asyncio.Task[ReleaseCheck]":
        """Return the task that ends when the gate opens."""
        return self._opening

    @property
    def decided(self) -> ReleaseCheck | None:
        """Return the result, or None while the gate is shut."""
        return self._opening.result() if self._opening.done() and not self._opening.cancelled() else None

    async def memory_left(self) -> int:
        """Query how much memory the old processes still have on the devices, in bytes; 0: none, or unknown."""
        devices = frozenset(item.device for item in self._held)
        if not devices or self._opening.done():
            return 0
        self.left = device_release.left(
            self._held, await self._host.processes_on(devices, timeout=self._timeouts.answer)
        )
        return self.left

    async def judgement(self, *, timeout: float | None = None) -> ReleaseCheck | None:
        """Wait until the gate opens, at most ``timeout`` seconds; the successor could start now. None: still shut."""
        if self._due_at is None:
            self._due_at = asyncio.get_running_loop().time()
            self._worth_asking.set()
        if not self._opening.done():  # a turn of a busy loop would count as a wait for the devices
            await asyncio.wait({self._opening}, timeout=timeout)
        return self._opening.result() if self._opening.done() else None

    def stuck(self) -> Mapping[DeviceId, frozenset[int]]:
        """Return the old processes that no signal reaches now, by the device that they were on."""
        found = {
            item.device: frozenset(
                pid for pid in item.pids if device_processes.is_stuck(self._host.processes, pid, if_unknown=False)
            )
            for item in self._held
        }
        return {device: pids for device, pids in found.items() if pids}

    async def close(self) -> None:
        """Stop polling."""
        await end(self._opening)

    async def _decide(self) -> ReleaseCheck:
        before = await self._listed(timeout=self._timeouts.before)
        if before is not None:
            self._held = device_release.remember(before, old=self._old)
            silent = self._devices - before.devices.keys()
            if self._held:
                await self._until_worth_asking()
        else:
            silent = await self._remember_late()
            if silent == self._devices:
                return ReleaseCheck(
                    ReleaseState.UNKNOWN, "the driver did not list the processes on the devices before the stop"
                )
        devices = frozenset(item.device for item in self._held)
        backoff = aio.Backoff(first=0.005, limit=0.25)
        while True:
            seen = await self._host.processes_on(devices, timeout=self._timeouts.answer)
            self.left = device_release.left(self._held, seen)
            judgement = device_release.judge(self._held, seen, old=self._old, silent=silent)
            if judgement.verdict.is_settled:
                return judgement
            threads = await self._follow(judgement, seen)
            if self._is_overdue(threads):
                judgement = device_release.overdue(judgement, stuck=self._stuck(judgement))
                log.warning(
                    "device_release.timed_out",
                    restart=self._restart,
                    verdict=judgement.verdict.value,
                    detail=judgement.detail,
                    seconds=self._timeouts.leave,
                )
                return judgement
            await backoff.wait()

    async def _listed(self, *, timeout: float) -> device_release.DeviceListing | None:
        """Return the driver's list of the processes before the stop; None if there is none in ``timeout`` seconds."""
        await asyncio.wait({self._before}, timeout=timeout)
        return self._before.result() if self._before.done() else None

    async def _remember_late(self) -> frozenset[DeviceId]:
        """Use the other facts, without a list from before the stop; return the devices without any fact.

        The old processes die in the meantime. The driver gets time beyond their end only if one had device files open.
        """
        recorded = await asyncio.shield(self._recorded)
        self._held = device_release.remember_late(None, recorded, devices=self._devices, old=self._old)
        on_devices = bool(self._held)
        if on_devices:
            await self._until_worth_asking()
        else:
            await self._until_due_or_listed()
        late = await self._listed(timeout=self._timeouts.answer if on_devices else 0.0)
        if late is None and not self._before.done():
            return self._devices
        self._held = device_release.remember_late(late, recorded, devices=self._devices, old=self._old)
        answered = late.devices.keys() if late is not None else frozenset()
        return frozenset() if on_devices else self._devices - answered

    async def _until_due_or_listed(self) -> None:
        due = asyncio.create_task(self._worth_asking.wait(), name="gate due")
        try:
            await asyncio.wait({due, self._before}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(due)

    async def _follow(self, judgement: ReleaseCheck, seen: device_release.DeviceListing | None) -> tuple[Thread, ...]:
        """Record whether anything has changed: the listed processes, their threads, or freed memory.

        Return the threads. Other processes may use the devices, too, so only memory below all earlier values is a sign.
        """
        pids = frozenset[int]().union(*judgement.pids.values())
        threads = await self._threads(pids)
        signs = _Signs(pids, threads, device_release.in_use(seen))
        now = asyncio.get_running_loop().time()
        passed = stuck.watched(max(self._polled_at, self._due_at), now) if self._due_at is not None else 0.0
        self._polled_at, self._watched, self._unchanged = now, self._watched + passed, self._unchanged + passed
        if self._signs is None or signs.show_more_than(self._signs):
            self._unchanged = 0.0
        self._signs = signs if self._signs is None else replace(signs, memory=min(signs.memory, self._signs.memory))
        return threads

    async def _threads(self, pids: frozenset[int]) -> tuple[Thread, ...]:
        """Return the threads of processes; none if they cannot be read: then the processes are not seen to be stuck."""
        try:
            return await asyncio.to_thread(self._host.processes.threads, pids) if pids else ()
        except OSError as error:
            log.warning("device_release.not_followed", restart=self._restart, pids=sorted(pids), error=str(error))
            return ()

    def _is_overdue(self, threads: tuple[Thread, ...]) -> bool:
        if self._due_at is None:
            return False
        if self._watched >= self._timeouts.longest:
            return True
        if self._unchanged < self._timeouts.leave:
            return False
        still = stuck.UnchangedThreads(threads, self._unchanged, self._polled_at)
        may_be_stuck = stuck.is_stuck(still, window=0.0)
        return not may_be_stuck or stuck.is_stuck(still, window=self._timeouts.stuck)

    async def _until_worth_asking(self) -> None:
        """Wait until the old processes have ended, or until the successor waits regardless of them."""
        ends = asyncio.create_task(self._note_ends(), name="gate ends")
        try:
            await self._worth_asking.wait()
        finally:
            await end(ends)

    async def _note_ends(self) -> None:
        for pid in [pid for item in self._held for pid in item.pids]:
            try:
                await self._host.processes.ended(pid)
            except OSError as error:
                log.warning("device_release.not_followed", restart=self._restart, pids=[pid], error=str(error))
                return  # the driver is asked once the successor waits
        self._worth_asking.set()

    def _stuck(self, judgement: ReleaseCheck) -> frozenset[int]:
        pids = frozenset[int]().union(*judgement.pids.values())
        return frozenset(pid for pid in pids if device_processes.is_stuck(self._host.processes, pid, if_unknown=False))


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; raise its error."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
