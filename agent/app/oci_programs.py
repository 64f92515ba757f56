"""Ask the container runtime which programs are its OCI runtimes, at each connection: a restart can change them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import structlog

from kubemend.agent.actuator.hold.oci_runtimes import OciRuntimes
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.restart.oci_programs import Named, Problem

log = structlog.get_logger(__name__)


class Runtime(Protocol):
    """The container runtime (``clients.cri.client.CriClient``)."""

    def connections(self) -> AsyncIterator[None]:
        """Yield at each new connection."""

    async def named_programs(self) -> Named:
        """Return the programs that the runtime names. Raises CriError."""


class OciPrograms:
    """Keep the programs that the runtime names up to date in ``found``. ``run`` does the work.

    While the runtime does not answer, the programs of its last answer are used, and those in its search path.
    """

    def __init__(self, runtime: Runtime, found: OciRuntimes) -> None:
        self._runtime = runtime
        self._found = found
        self._asked = asyncio.Event()
        self._logged: Problem | None = None

    async def asked(self) -> None:
        """Wait until the runtime has answered or refused for the first time."""
        await self._asked.wait()

    async def run(self) -> None:
        """Ask at each connection, for as long as the agent runs."""
        async for _ in self._runtime.connections():
            try:
                named = await self._runtime.named_programs()
            except CriError as error:
                log.warning("oci_programs.not_reported", error=str(error))
            else:
                self._use(named)
            self._asked.set()

    def _use(self, named: Named) -> None:
        self._found.named = named.programs
        if named.problem is not None and named.problem != self._logged:
            log.warning("oci_programs.not_used", reason=named.problem.reason.value, what=named.problem.what)
        self._logged = named.problem
