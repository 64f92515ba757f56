"""Run the worker processes of proofs (``agent.prove.worker``) and collect their reports."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.prove import measurements
from kubemend.agent.prove.measurements import Finished, Hanging, Measured, Message
from kubemend.agent.sources.nvml.child import Child
from kubemend.common import aio, process

STOP_SECONDS: Final = 2.0
"""Seconds for a worker to end when it has been asked to."""

_BEGIN: Final = b"begin\n"
_PROGRAM: Final = "kubemend.agent.prove.worker"  # not imported: what it needs takes memory in the agent


class Worker:
    """One worker process. It has been started, and does nothing until ``measured`` is called.

    The constructor raises OSError if it cannot be started. Call ``close`` at the end in any case.
    """

    def __init__(self, what: str, uuids: Sequence[DeviceId], *, deadline: float, leaving: Path | None = None) -> None:
        """``what``: ``measurements.ONE_GPU`` or ``measurements.PEERS``; ``deadline`` of one CUDA call is in seconds.

        ``leaving``: where cgroups are mounted, for a worker that leaves this process's.
        """
        cgroups = [str(leaving)] if leaving is not None else []
        argv = process.helper_command(_PROGRAM, what, ",".join(uuids), str(deadline), *cgroups)
        self._child = Child(argv, env=_environment(uuids))

    async def measured(self, *, timeout: float, stop: float = STOP_SECONDS) -> Measured:
        """Let it prove, and return its reports within ``timeout`` seconds.

        Then it is asked to end, and ``stop`` seconds are given to it; ``STOP_SECONDS`` if it has not finished, because
        it has most of the GPU's memory until it has ended. A worker that hangs in the driver is left behind to end by
        itself: killing it could wedge its GPU.
        """
        messages: list[Message] = []
        grace = stop
        child = self._child
        await child.connect()
        child.send(_BEGIN)
        reports = asyncio.ensure_future(_reports(child, messages))
        try:
            if await aio.is_done_within(timeout, reports):
                return reports.result()
            grace = max(stop, STOP_SECONDS)
            return measurements.gathered(messages, ended=f"it did not finish within {timeout:g} s")
        finally:
            reports.cancel()
            child.close_stdin()
            await self.ended(timeout=grace)

    async def ended(self, *, timeout: float) -> None:
        """Wait until it has ended, at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._child.ended()

    def close(self) -> None:
        """Ask it to end, if it still runs, and close its pipes."""
        self._child.close_stdin()
        self._child.close_pipes()


async def run(what: str, uuids: Sequence[DeviceId], *, deadline: float, timeout: float) -> Measured:
    """Start one worker and return its reports within ``timeout`` seconds; ``deadline`` is that of one CUDA call."""
    try:
        started = Worker(what, uuids, deadline=deadline)
    except OSError as error:
        return Measured(ended=f"the worker cannot be started: {error.strerror}")
    try:
        return await started.measured(timeout=timeout)
    finally:
        started.close()


async def _reports(child: Child, messages: list[Message]) -> Measured:
    await _receive(child, messages)
    if messages and isinstance(messages[-1], Finished | Hanging):
        return measurements.gathered(messages)
    return measurements.gathered(messages, ended=await _how_it_ended(child))


async def _receive(child: Child, messages: list[Message]) -> None:
    """Receive messages until the worker ends or reports a call that hangs."""
    while (line := await child.stdout.readline()).endswith(b"\n"):
        messages.append(measurements.decode(line))
        if isinstance(messages[-1], Hanging):
            return


async def _how_it_ended(child: Child) -> str:
    status, output = await child.ended(), await child.stderr.read()
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    last = output.decode(errors="replace").strip().rpartition("\n")[2]
    return f"its process ended {how} ({last or 'no output'})"


def _environment(uuids: Sequence[DeviceId]) -> dict[str, str]:
    """Return the worker's environment: these GPUs only, in this order, and no cache of compiled kernels on the disk."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_CACHE_DISABLE": "1"}
