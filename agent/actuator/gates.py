"""Gates before the start of a successor: shut until the old process has left its devices (``agent.restart.gates``).

Who is on the devices is noted before the stop, beside the write to the journal. From when the old processes have ended
(a pidfd tells it, mostly before the runtime has answered the stop) the driver is asked until they have left, so a gate
mostly stands open before the successor is there. A driver that does not answer holds nothing up.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from agent.actuator import occupants
from agent.actuator.occupants import Driver, Host, NoDriver, NoProcesses, Processes
from agent.cri import errors as cri_errors
from agent.model.devices import GpuUuid
from agent.model.hangs import Thread
from agent.restart import gates, intents, stuck
from agent.restart.gates import Judgement, Verdict
from common import aio

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: ``before`` for the driver to say who is on the devices before the stop, ``answer`` for each answer after
    it, ``leave`` for the old processes to leave, from when the successor could start, and anew whenever something of
    them has moved; ``longest`` at most. ``stuck`` is for how long nothing may move of one that cannot be killed."""

    before: float = 0.25
    answer: float = 1.0
    leave: float = 10.0
    longest: float = 600.0
    stuck: float = stuck.WINDOW


class ProcessStuckError(cri_errors.DeadlineExceeded):
    """A process of the old container survives its kill: no other case than a stop that does not end."""


@dataclass(frozen=True, slots=True)
class _Signs:
    """What shows at a look whether the old processes still leave; ``memory`` in bytes."""

    pids: frozenset[int]
    threads: tuple[Thread, ...]
    memory: int

    def show_more_than(self, before: "_Signs") -> bool:
        """Whether something has moved since."""
        return (self.pids, self.threads) != (before.pids, before.threads) or self.memory < before.memory


class Gate:
    """The gate of one intent. It opens by itself, with a judgement."""

    def __init__(
        self,
        intent: intents.AnyIntent,
        *,
        devices: frozenset[GpuUuid],
        before: "asyncio.Task[gates.Seen | None]",
        host: Host,
        patience: Patience,
    ) -> None:
        self._restart = intent.id
        self._old = intent.old if isinstance(intent, intents.PodIntent) else frozenset({intent.old})
        self._devices = devices
        self._before = before
        self._host = host
        self._patience = patience
        self._held: Sequence[gates.Held] = ()
        self._worth_asking = asyncio.Event()
        self._due_at: float | None = None
        self._signs: _Signs | None = None
        self._moved_at = 0.0
        self._opening = asyncio.create_task(self._decide(), name=f"gate {intent.id}")

    @property
    def was_occupied(self) -> bool:
        """Whether a process of the old container was on its devices."""
        return bool(self._held)

    @property
    def decided(self) -> Judgement | None:
        """The judgement, once there is one."""
        return self._opening.result() if self._opening.done() and not self._opening.cancelled() else None

    async def judgement(self, *, timeout: float | None = None) -> Judgement | None:
        """Wait until it opens, for so many seconds at most; the successor could start now. None: it is still shut."""
        if self._due_at is None:
            self._due_at = asyncio.get_running_loop().time()
            self._worth_asking.set()
        done, _ = await asyncio.wait({self._opening}, timeout=timeout)
        return self._opening.result() if done else None

    def stuck(self) -> Mapping[GpuUuid, frozenset[int]]:
        """Return the old processes that no signal reaches now, by the device that they were on."""
        found = {
            item.device: frozenset(
                pid for pid in item.pids if occupants.is_stuck(self._host.processes, pid, unless_told=False)
            )
            for item in self._held
        }
        return {device: pids for device, pids in found.items() if pids}

    async def close(self) -> None:
        """Ask no more."""
        await _end(self._opening)

    async def _decide(self) -> Judgement:
        before = await asyncio.shield(self._before)
        if before is None:
            return Judgement(Verdict.UNKNOWN, "the driver did not say who was on the devices before the stop")
        self._held = gates.remember(before, old=self._old)
        if self._held:
            await self._until_worth_asking()
        silent = self._devices - before.devices.keys()
        devices = frozenset(item.device for item in self._held)
        backoff = aio.Backoff(first=0.005, limit=0.25)
        while True:
            seen = await self._host.look(devices, timeout=self._patience.answer)
            judgement = gates.judge(self._held, seen, old=self._old, silent=silent)
            if judgement.verdict.is_settled:
                return judgement
            threads = await self._follow(judgement, seen)
            if self._is_overdue(threads):
                judgement = gates.overdue(judgement, stuck=self._stuck(judgement))
                log.warning(
                    "gate.given_up",
                    restart=self._restart,
                    verdict=judgement.verdict.value,
                    detail=judgement.detail,
                    seconds=self._patience.leave,
                )
                return judgement
            await backoff.wait()

    async def _follow(self, judgement: Judgement, seen: gates.Seen | None) -> tuple[Thread, ...]:
        """Note whether something has moved: who is listed, what their threads do, or memory that was freed.

        Return those threads. Others may use the devices, too: only less memory than ever before is a sign.
        """
        pids = frozenset[int]().union(*judgement.pids.values())
        threads = await asyncio.to_thread(self._host.processes.threads, pids) if pids else ()
        signs = _Signs(pids, threads, gates.in_use(seen))
        if self._signs is None or signs.show_more_than(self._signs):
            self._moved_at = asyncio.get_running_loop().time()
        self._signs = signs if self._signs is None else replace(signs, memory=min(signs.memory, self._signs.memory))
        return threads

    def _is_overdue(self, threads: tuple[Thread, ...]) -> bool:
        if self._due_at is None:
            return False
        now = asyncio.get_running_loop().time()
        if now - self._due_at >= self._patience.longest:
            return True
        if now - max(self._due_at, self._moved_at) < self._patience.leave:
            return False
        still = stuck.Still(threads, self._moved_at)
        may_be_stuck = stuck.is_stuck(still, now=now, window=0.0)
        return not may_be_stuck or stuck.is_stuck(still, now=now, window=self._patience.stuck)

    async def _until_worth_asking(self) -> None:
        """Wait until the old processes have ended, or until the successor waits whatever became of them."""
        ends = asyncio.create_task(self._note_ends(), name="gate ends")
        try:
            await self._worth_asking.wait()
        finally:
            await _end(ends)

    async def _note_ends(self) -> None:
        for item in self._held:
            for pid in item.pids:
                await self._host.processes.ended(pid)
        self._worth_asking.set()

    def _stuck(self, judgement: Judgement) -> frozenset[int]:
        pids = frozenset[int]().union(*judgement.pids.values())
        return frozenset(pid for pid in pids if occupants.is_stuck(self._host.processes, pid, unless_told=False))


@dataclass(frozen=True, slots=True)
class Visit:
    """The gates of one restart."""

    made: Sequence[Gate]
    before: "asyncio.Task[gates.Seen | None]"

    async def remembered(self) -> None:
        """Wait until it is known who is on the devices, or until that has taken too long. Nothing is stopped before."""
        await asyncio.wait({self.before})

    async def judgement(self) -> Judgement:
        """Wait until all gates are open, and return the gravest judgement."""
        found = await asyncio.gather(*(gate.judgement() for gate in self.made))
        return gates.worst([each for each in found if each is not None])

    @property
    def was_occupied(self) -> bool:
        """Whether a process of the old containers was on the devices."""
        return any(gate.was_occupied for gate in self.made)

    def stuck(self) -> Mapping[GpuUuid, frozenset[int]]:
        """Return the old processes that no signal reaches now, by the device that they were on."""
        found: dict[GpuUuid, frozenset[int]] = {}
        for gate in self.made:
            for device, pids in gate.stuck().items():
                found[device] = found.get(device, frozenset()) | pids
        return found


class Gates:
    """The gates of all restarts under way."""

    def __init__(self, *, driver: Driver, processes: Processes, patience: Patience | None = None) -> None:
        self._host = Host(driver, processes)
        self._patience = patience if patience is not None else Patience()
        self._gates: dict[str, Gate] = {}

    @contextlib.asynccontextmanager
    async def around(self, begun: Sequence[intents.AnyIntent], *, devices: frozenset[GpuUuid]) -> AsyncIterator[Visit]:
        """Put a gate before each of these intents, for the length of the block; asks at once who is on the devices."""
        look = self._host.look(devices, timeout=self._patience.before)
        before = asyncio.create_task(look, name="before the stop")
        made = {
            intent.id: Gate(intent, devices=devices, before=before, host=self._host, patience=self._patience)
            for intent in begun
        }
        self._gates.update(made)
        try:
            yield Visit(tuple(made.values()), before)
        finally:
            for restart, gate in made.items():
                del self._gates[restart]
                await gate.close()
            await _end(before)

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        """Wait at an intent's gate, for so many seconds at most; whether it is open. Without a gate it is."""
        if (gate := self._gates.get(restart)) is None:
            return True
        judgement = await gate.judgement(timeout=timeout)
        return judgement is not None and judgement.verdict is not Verdict.STUCK

    def raise_if_stuck(self, restart: str) -> None:
        """Raises ProcessStuckError when the gate of an intent will not open: there is nothing to be started."""
        gate = self._gates.get(restart)
        judgement = gate.decided if gate is not None else None
        if judgement is not None and judgement.verdict is Verdict.STUCK:
            raise ProcessStuckError(f"the old process {judgement.detail}", mend="reboot the node if it does not end")


async def _end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; what it failed with is raised."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def open_gates() -> Gates:
    """Return gates that hold nothing up: those of a node without a driver."""
    return Gates(driver=NoDriver(), processes=NoProcesses())
