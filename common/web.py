"""/metrics, /healthz and /readyz."""

import json
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.parts import Parts


class ListenError(Exception):
    """The address cannot be listened on; the text says which and what to do."""


class WebServer:
    """Serves the three pages; ``async with``."""

    def __init__(self, *, address: tuple[str, int], parts: Parts, registry: CollectorRegistry) -> None:
        self._address = address
        self._parts = parts
        self._registry = registry
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        host, port = self._address
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --metrics-address"
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        """A task that ends takes the process with it, so an answer from the event loop is all there is to say."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        parts = {
            name: {"state": status.state.value, "message": status.message, "mend": status.mend}
            for name, status in self._parts.all().items()
        }
        body = json.dumps({"ready": self._parts.ready(), "parts": parts}, indent=2)
        return web.Response(
            text=body + "\n", status=200 if self._parts.ready() else 503, content_type="application/json"
        )
