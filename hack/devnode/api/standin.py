"""The stand-in as a server: in a test's own event loop, or as a process (``python -m hack.devnode.api``)."""

import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from hack.devnode.api import kubeconfig as kubeconfigs
from hack.devnode.api.handler import Handler


class StandIn:
    """Serves a ``Handler`` on loopback; an ``ApiServer``. Port 0 takes a free one, and keeps it over ``stop``."""

    def __init__(
        self, *, kubeconfig: Path, port: int = 0, bookmark_period: float = 60.0, history: int = 10_000
    ) -> None:
        self._kubeconfig = kubeconfig
        self.token = secrets.token_urlsafe(16)
        self._runner: web.ServerRunner | None = None
        self.port = port
        self.handler = Handler(token=self.token, bookmark_period=bookmark_period, history=history)

    @property
    def kubeconfig(self) -> Path:
        """The file with which clients get in."""
        return self._kubeconfig

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; objects from before a ``stop`` are still there."""
        runner = web.ServerRunner(web.Server(self.handler, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = runner.addresses[0][1]
        self._runner = runner
        kubeconfigs.write(self._kubeconfig, server=f"http://127.0.0.1:{self.port}", token=self.token)

    async def stop(self) -> None:
        """Stop listening and break all connections."""
        if self._runner is not None:
            self.handler.drop_watches()
            await self._runner.cleanup()
            self._runner = None

    async def forget_history(self) -> None:
        """Forget what watches could go on from; those that run are not disturbed."""
        self.handler.store.compact()
        self.handler.operations.pages.forget()
