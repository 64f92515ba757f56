"""Run reporters against a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from kubemend.common.kube import client
from tests import background
from tests.control_plane import Tenant

SECONDS = 120.0


class Reporter(Protocol):
    """A reporter that runs until it is cancelled."""

    async def run(self) -> None: ...


@contextlib.asynccontextmanager
async def connected(tenant: Tenant) -> AsyncIterator[client.KubeClient]:
    """Yield a client. A test that uses it ends within two minutes."""
    async with asyncio.timeout(SECONDS), tenant.client() as api:
        yield api


def started(reporter: Reporter) -> contextlib.AbstractAsyncContextManager[None]:
    """Run the reporter for the block; raise its error."""
    return background.running(reporter.run())
