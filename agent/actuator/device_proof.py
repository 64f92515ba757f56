"""Prove a restart's GPUs after its old processes have left them, and before anything new starts on them.

The rule is in ``agent.restart.device_proof``; ``agent.app.restart_proofs`` makes the proofs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import PodRef
from kubemend.agent.restart import device_proof
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.restart.device_release import ReleaseCheck, ReleaseState
from kubemend.agent.restart.intents import Strategy


class PreparedProof(Protocol):
    """A proof that can begin at once. It has its own deadline, and never fails."""

    @property
    def devices(self) -> frozenset[DeviceId]: ...
    async def run(self) -> Sequence[DeviceProof]:
        """Prove the devices, which the old processes have left."""

    def close(self) -> None:
        """Ask the prepared workers to end. May be called again."""

    async def ended(self) -> None:
        """Wait until that has ended, or hangs in the driver."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a proof is about: the restart's strategy, the containers that it replaces, and the GPUs that they hold.

    ``device`` is the device at fault, by the name under which its health is kept. ``attempt`` is the number of the
    gang's round, 0 outside rounds.
    """

    restart: str
    strategy: Strategy
    pod: PodRef
    names: frozenset[str]
    devices: frozenset[DeviceId]
    device: str | None = None
    attempt: int = 0


class Prover(Protocol):
    """Prepare the proofs of restarts (``agent.app.restart_proofs.RestartProofs``)."""

    def prepare(self, subject: Subject) -> PreparedProof | None:
        """Return the proof of a restart's GPUs; None if none must be proved. Does not block."""


class Proving:
    """The proof of one restart. It begins when all of the restart's gates are open and one of them is waited at."""

    def __init__(self, prepared: PreparedProof | None, *, openings: Sequence["asyncio.Task[ReleaseCheck]"]) -> None:
        """``prepared`` None: nothing is proved. ``openings`` are the restart's gates."""
        self._prepared = prepared
        self._openings = openings
        self._task: asyncio.Task[tuple[DeviceProof, ...]] | None = None
        self._interrupted = False
        self._begun_at: float | None = None
        self._ended_at: float | None = None

    @property
    def results(self) -> tuple[DeviceProof, ...]:
        """Return the results so far: none before the proof has ended."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return self._task.result()
        if self._prepared is None or not self._interrupted:
            return ()
        return self._unproved(device_proof.INTERRUPTED, "a container was started, or the restart ended, before its end")

    async def done(self, *, timeout: float | None) -> bool:
        """Wait for the end of the proof, at most ``timeout`` seconds; return whether it is over."""
        if self._prepared is None or self._interrupted:
            return True
        if self._task is None:
            self._task = asyncio.create_task(self._prove(self._prepared), name="proof")
        if not self._task.done():
            await asyncio.wait({self._task}, timeout=timeout)
        return self._task.done()

    def interrupt(self) -> None:
        """End the proof: something may use the devices from now on."""
        if self._interrupted or (self._task is not None and self._task.done()):
            return
        self._interrupted = True
        if self._task is not None:
            self._task.cancel()
        if self._prepared is not None:
            self._prepared.close()

    def seconds(self, *, since: float) -> float:
        """Return for how long it has been running since then (loop time)."""
        if self._begun_at is None:
            return 0.0
        now = asyncio.get_running_loop().time()
        return max(0.0, (self._ended_at if self._ended_at is not None else now) - max(since, self._begun_at))

    async def close(self) -> None:
        """End the proof, and wait until it has ended."""
        self.interrupt()
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._prepared is not None:
            self._prepared.close()
            await self._prepared.ended()

    async def _prove(self, prepared: PreparedProof) -> tuple[DeviceProof, ...]:
        if self._openings:
            await asyncio.wait(self._openings)
        shut = [each.result() for each in self._openings if each.result().verdict is not ReleaseState.FREE]
        if shut:
            return self._unproved(device_proof.NOT_FREE, shut[0].detail)
        clock = asyncio.get_running_loop().time
        self._begun_at = clock()
        try:
            return tuple(await prepared.run())
        finally:
            self._ended_at = clock()

    def _unproved(self, reason: str, detail: str) -> tuple[DeviceProof, ...]:
        assert self._prepared is not None
        devices = sorted(self._prepared.devices)
        return tuple(DeviceProof(device, ProofState.UNKNOWN, reason, detail) for device in devices)
