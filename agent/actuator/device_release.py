"""Delay the start of a successor until the old process has left its devices.

The rule is in ``agent.restart.device_release``.

The processes on the devices are recorded before the stop, in parallel with the journal write. A driver that is busy
with a fault may list them too late for that: its answer still counts when it comes while the old processes are dying,
and without one those count that had device files open (``agent.actuator.device_processes``). When the old processes
have ended (a pidfd shows it, mostly before the runtime answers the stop) the driver is polled until they have left, so
a gate is mostly open before the successor exists. A driver that does not answer delays nothing. Then the devices that a
restart must prove are proved (``agent.actuator.device_proof``).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import device_health, device_processes
from kubemend.agent.actuator.device_health import DeviceHealth
from kubemend.agent.actuator.device_processes import DeviceUsers, Driver, Host, NoDriver, NoProcesses
from kubemend.agent.actuator.device_proof import PreparedProof, Proving
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import device_proof, device_release, intents, stuck
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


class ProcessStuckError(cri_errors.DeadlineExceeded):
    """A process of the old container survives its kill; handled like a stop that times out."""


class DeviceUnusableError(cri_errors.CriError):
    """A device has failed its proof, or has a fault, so nothing may be started on it."""


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
        await _end(self._opening)

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
            await _end(due)

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
            await _end(ends)

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


@dataclass(frozen=True, slots=True)
class GateSession:
    """The gates of one restart, and the proof of its devices behind them."""

    made: Sequence[Gate]
    before: "asyncio.Task[device_release.DeviceListing | None]"
    recorded: "asyncio.Task[Mapping[int, device_release.Process]]"
    proving: Proving
    timeouts: Timeouts

    async def remembered(self) -> None:
        """Wait until the processes on the devices are known, or that times out. Nothing is stopped before."""
        await asyncio.wait({self.before}, timeout=self.timeouts.before)
        if not self.before.done() or self.before.exception() is not None or self.before.result() is None:
            await asyncio.wait({self.recorded}, timeout=self.timeouts.before)

    async def judgement(self) -> ReleaseCheck:
        """Wait until all gates are open, and return the worst result."""
        found = await asyncio.gather(*(gate.judgement() for gate in self.made))
        return device_release.worst([each for each in found if each is not None])

    @property
    def was_occupied(self) -> bool:
        """Return whether a process of the old containers was on the devices."""
        return any(gate.was_occupied for gate in self.made)

    def stuck(self) -> Mapping[DeviceId, frozenset[int]]:
        """Return the old processes that no signal reaches now, by the device that they were on."""
        found: dict[DeviceId, frozenset[int]] = {}
        for gate in self.made:
            for device, pids in gate.stuck().items():
                found[device] = found.get(device, frozenset()) | pids
        return found


class ReleaseGates:
    """The gates of all restarts in progress."""

    def __init__(
        self,
        *,
        driver: Driver,
        processes: ports.DeviceProcesses,
        old: DeviceUsers | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """``old`` None: processes are known from the driver alone."""
        self._old = old
        self._host = Host(driver, processes)
        self._timeouts = timeouts if timeouts is not None else Timeouts()
        self._gates: dict[str, Gate] = {}
        self._proofs: dict[str, Proving] = {}
        self._health: dict[str, DeviceHealth] = {}

    @contextlib.asynccontextmanager
    async def around(
        self,
        begun: Sequence[intents.AnyIntent],
        *,
        devices: frozenset[DeviceId],
        proof: PreparedProof | None = None,
        judge: device_health.Judge = device_health.no_obstacle,
    ) -> AsyncIterator[GateSession]:
        """Put a gate before each of these intents for the block; query the processes on the devices at once.

        ``proof`` runs once, behind all gates; the block closes it. ``judge`` decides behind them, and again behind the
        proof, whether the devices' health allows a start.
        """
        query = self._host.processes_on(devices, timeout=self._timeouts.late)
        before = asyncio.create_task(query, name="before the stop")
        recorded = asyncio.create_task(self._recorded(begun, devices=devices), name="old processes")
        made = {
            intent.id: Gate(
                intent, devices=devices, before=before, recorded=recorded, host=self._host, timeouts=self._timeouts
            )
            for intent in begun
        }
        proving = Proving(proof, openings=[gate.opening for gate in made.values()])
        self._gates.update(made)
        self._proofs.update(dict.fromkeys(made, proving))
        self._health.update(dict.fromkeys(made, DeviceHealth(judge, self._timeouts.leave)))
        async with contextlib.AsyncExitStack() as ends:  # all are ended, whichever of them has failed
            ends.push_async_callback(_end, recorded)
            ends.push_async_callback(_end, before)
            for gate in made.values():
                ends.push_async_callback(gate.close)
            ends.callback(self._forget, made)
            ends.push_async_callback(proving.close)
            yield GateSession(tuple(made.values()), before, recorded, proving, self._timeouts)

    def _forget(self, restarts: Iterable[str]) -> None:
        for restart in restarts:
            del self._gates[restart], self._proofs[restart], self._health[restart]

    async def _recorded(
        self, begun: Sequence[intents.AnyIntent], *, devices: frozenset[DeviceId]
    ) -> Mapping[int, device_release.Process]:
        if self._old is None or not devices:
            return {}
        return await self._old.on_devices(frozenset[ContainerId]().union(*(intent.old_ids for intent in begun)))

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        """Wait at an intent's gate and for the proof behind it, at most ``timeout`` seconds each.

        Return whether a container may start. No gate counts as open.
        """
        if (gate := self._gates.get(restart)) is None:
            return True
        judgement = await gate.judgement(timeout=timeout)
        if judgement is None or judgement.verdict is ReleaseState.STUCK:
            return False
        proving, health = self._proofs[restart], self._health[restart]
        if health.unusable():
            return False  # a proof would show nothing new
        if not await proving.done(timeout=timeout) or device_proof.unusable(proving.results):
            return False
        return await health.allows_start(timeout=timeout)

    def last_left(self, restart: str) -> int:
        """Return how much that was when the driver was last polled."""
        gate = self._gates.get(restart)
        return gate.left if gate is not None and gate.decided is None else 0

    async def memory_left(self, restart: str) -> int:
        """Query how much device memory the old processes of an intent still have, in bytes; 0: none, or unknown."""
        gate = self._gates.get(restart)
        return await gate.memory_left() if gate is not None else 0

    def proof_seconds(self, restart: str, *, since: float) -> float:
        """Return for how long the proof of an intent's devices has been running since then (loop time)."""
        return proving.seconds(since=since) if (proving := self._proofs.get(restart)) is not None else 0.0

    def leave(self, restart: str) -> None:
        """End an intent's part: its container runs, or never will. A proof under way is ended."""
        if (proving := self._proofs.get(restart)) is not None:
            proving.interrupt()

    def raise_if_shut(self, restart: str) -> None:
        """Raise ProcessStuckError or DeviceUnusableError if the gate of an intent will not open."""
        gate = self._gates.get(restart)
        judgement = gate.decided if gate is not None else None
        if judgement is None:
            return
        if judgement.verdict is ReleaseState.STUCK:
            raise ProcessStuckError(f"the old process {judgement.detail}", hint="reboot the node if it does not end")
        if reason := device_proof.unusable(self._proofs[restart].results) or self._health[restart].unusable():
            raise DeviceUnusableError(reason)


async def _end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; raise its error."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def open_gates() -> ReleaseGates:
    """Return gates that delay nothing, for a node without a driver."""
    return ReleaseGates(driver=NoDriver(), processes=NoProcesses())
