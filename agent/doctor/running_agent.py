"""The agent itself, where one runs: what its own parts say."""

import json
from collections.abc import Mapping, Sequence

import aiohttp

from agent.doctor.checks import Check, Result
from common.parts import PartState, PartStatus

NAME = "agent"

_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what an agent may listen on
_NOT_OURS = "give the agent another address by --metrics-address, or end what listens there"


async def ready(address: tuple[str, int]) -> Sequence[Check]:
    """Ask the agent's /readyz. No agent at all is no fault: doctor is also run before there is one."""
    given, port = address
    host = _ANYWHERE.get(given, given)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    try:
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
            parts = _parts(await answer.read())
    except aiohttp.ClientConnectorError:
        return (Check(NAME, Result.NOT_NEEDED, f"no agent listens at {host}:{port}"),)
    except (aiohttp.ClientError, ValueError):
        return (Check(NAME, Result.FAIL, f"what listens at {host}:{port} is not an agent", _NOT_OURS),)
    return (parts_check(parts),)


def parts_check(parts: Mapping[str, PartStatus]) -> Check:
    """Say what the parts of a running agent say."""
    degraded = {name: part for name, part in parts.items() if part.state is PartState.DEGRADED}
    if degraded:
        what = "; ".join(f"{name}: {part.message}" for name, part in degraded.items())
        mend = "; ".join(dict.fromkeys(part.mend for part in degraded.values()))
        return Check(NAME, Result.FAIL, f"it runs, but {what}", mend)
    starting = [name for name, part in parts.items() if part.state is PartState.STARTING]
    if starting:
        return Check(NAME, Result.WARN, f"it runs, and is still starting: {', '.join(starting)}", "ask again")
    return Check(NAME, Result.OK, f"it runs and is ready: {', '.join(parts)}")


def _parts(body: bytes) -> Mapping[str, PartStatus]:
    """Read the body of /readyz (``common.web``). Raises ValueError when it is something else."""
    try:
        items = json.loads(body)["parts"].items()
        return {name: PartStatus(PartState(part["state"]), part["message"], part["mend"]) for name, part in items}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not the parts of an agent") from error
