"""Serve a crowd of pods as an API server would, holding only one of them at a time."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from aiohttp import web

from bench.memory.pods import Crowd
from hack.devnode import kubeconfig
from kubemend.common.kube import paths
from kubemend.controller.watches import members

_VERSION = 1_000_000


class PodServer:
    """List all pods, then change all of them once more, and finally let the first one fail."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; this is aiohttp's low-level handler."""
        if request.path != paths.PODS or request.query.get("labelSelector") in members.SELECTORS[1:]:
            crowd = Crowd(0)
        else:
            crowd = self._crowd
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if request.query.get("watch"):
            for line in _changes(crowd):
                await response.write(line)
                await asyncio.sleep(0)  # a write may not block, and other requests must be served
            await asyncio.Event().wait()
        begin = int(request.query.get("continue", "0"))
        for part in _page(crowd, begin=begin, limit=int(request.query.get("limit", "0"))):
            await response.write(part)
            await asyncio.sleep(0)
        return response


@contextlib.asynccontextmanager
async def serving(crowd: Crowd, *, directory: Path) -> AsyncIterator[Path]:
    """Serve for the length of the block; yield the kubeconfig."""
    runner = web.ServerRunner(web.Server(PodServer(crowd), handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield kubeconfig.write(directory / "kubeconfig", server=server, token="x")
    finally:
        await runner.cleanup()


def _page(crowd: Crowd, *, begin: int, limit: int) -> Iterator[bytes]:
    end = min(crowd.count, begin + limit) if limit else crowd.count
    metadata = {"resourceVersion": str(_VERSION)} | ({"continue": str(end)} if end < crowd.count else {})
    yield f'{{"kind":"PodList","apiVersion":"v1","metadata":{json.dumps(metadata)},"items":['.encode()
    for number in range(begin, end):
        yield (b"," if number > begin else b"") + crowd.one(number)
    yield b"]}\n"


def _changes(crowd: Crowd) -> Iterator[bytes]:
    for obj in crowd.objects():
        yield b'{"type":"MODIFIED","object":%b}\n' % obj
    if crowd.count:
        yield b'{"type":"MODIFIED","object":%b}\n' % crowd.one(0, phase="Failed")
