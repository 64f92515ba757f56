"""Read an agent's /readyz from outside, and wait for what it reports."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from hack.devnode.node import Agent

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
_LOOK_SECONDS: Final = 0.05
_SILENT: Final[Mapping[str, Any]] = {"status": 0, "ready": False, "parts": {}}

Report = Mapping[str, Any]


async def report(address: str) -> Report:
    """Return what an agent reports: ``ready``, and the state of each of its ``parts``; also the HTTP ``status``.

    While it does not listen, it is not ready, its status is 0, and it has no parts. An agent is ready without a hub,
    because single containers need none.
    """
    try:
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=_TIMEOUT) as session,
            session.get(f"http://{address}/readyz") as answer,
        ):
            return {"status": answer.status, **await answer.json()}
    except (aiohttp.ClientError, TimeoutError):
        return _SILENT


async def until(agent: Agent, holds: Callable[[Report], bool], *, what: str, timeout: float = 120.0) -> Report:
    """Poll until a report of all parts is as wanted, and return it.

    Raises TimeoutError with the last report, and RuntimeError if the agent has ended.
    """
    reported = _SILENT
    try:
        async with asyncio.timeout(timeout):
            while not (reported["parts"] and holds(reported)):
                if agent.child.returncode is not None:
                    raise RuntimeError(f"the agent has ended; see {agent.log}")
                await asyncio.sleep(_LOOK_SECONDS)
                reported = await report(agent.metrics_address)
    except TimeoutError as error:
        raise TimeoutError(f"{what} did not come within {timeout:g} s: {json.dumps(reported)}") from error
    return reported


async def until_ready(agent: Agent, *, hub: bool = False) -> Report:
    """Wait until an agent is ready, with ``hub`` also connected to its hub. Raises as ``until`` does."""
    return await until(agent, lambda reported: is_ready(reported, hub=hub), what="a ready agent")


def is_ready(reported: Report, *, hub: bool) -> bool:
    """Return whether an agent is ready, with ``hub`` also connected to its hub."""
    return reported["ready"] and (not hub or reported["parts"]["hub"]["state"] == "ready")
