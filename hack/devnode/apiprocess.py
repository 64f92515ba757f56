"""The API stand-in as a process of the dev node, so that it outlives the event loops of those who use it."""

import asyncio
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from common import aio
from common.kube import client, errors
from hack.devnode import processes
from hack.devnode.kubelet import process

_START_SECONDS = 15.0
_STOP_SECONDS = 5.0


class ApiProcess:
    """Runs ``python -m hack.devnode.api``. It keeps its objects in memory: they end with it."""

    def __init__(self, *, kubeconfig: Path, log: Path, pid_file: Path) -> None:
        self.kubeconfig = kubeconfig
        self._log = log
        self._pid_file = pid_file
        self._child: processes.Child | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it and wait until it answers. Raises processes.ProcessError."""
        self._child = processes.Child.start(
            [sys.executable, "-m", "hack.devnode.api", f"--kubeconfig={self.kubeconfig}"],
            name="API stand-in",
            log=self._log,
            pid_file=self._pid_file,
            environment=process.source_environment(),
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._answers(self._child)
        except TimeoutError as error:
            raise processes.ProcessError(f"the API stand-in does not answer; see {self._log}") from error

    async def stop(self) -> None:
        """End it."""
        if self._child is not None:
            await self._child.stop(grace=_STOP_SECONDS)
            self._child = None

    def pause(self) -> None:
        """Have it hang (SIGSTOP): connections are accepted, and nobody answers."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT)

    async def _answers(self, child: processes.Child) -> None:
        backoff = aio.Backoff(first=0.05, limit=0.5)
        async with client.connect(kubeconfig=self.kubeconfig) as kube:
            while True:
                if child.returncode is not None:
                    raise processes.ProcessError(f"the API stand-in ended ({child.returncode}); see {self._log}")
                try:
                    await kube.get("/version")
                except errors.ApiUnavailableError:
                    await backoff.wait()
                else:
                    return
