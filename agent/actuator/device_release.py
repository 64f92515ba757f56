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
from dataclasses import dataclass

from kubemend.agent import ports
from kubemend.agent.actuator import device_health
from kubemend.agent.actuator.device_health import DeviceHealth
from kubemend.agent.actuator.device_processes import DeviceUsers, Driver, Host, NoDriver, NoProcesses
from kubemend.agent.actuator.device_proof import PreparedProof, Proving
from kubemend.agent.actuator.release_gate import Gate, Timeouts, end
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import device_proof, device_release, intents
from kubemend.agent.restart.device_release import ReleaseCheck, ReleaseState


class ProcessStuckError(cri_errors.DeadlineExceeded):
    """A process of the old container survives its kill; handled like a stop that times out."""


class DeviceUnusableError(cri_errors.CriError):
    """A device has failed its proof, or has a fault, so nothing may be started on it."""


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
            ends.push_async_callback(end, recorded)
            ends.push_async_callback(end, before)
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


def open_gates() -> ReleaseGates:
    """Return gates that delay nothing, for a node without a driver."""
    return ReleaseGates(driver=NoDriver(), processes=NoProcesses())
