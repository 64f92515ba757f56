"""Check the running agent, if any, by the statuses of its components."""

import json
from collections.abc import Mapping, Sequence

import aiohttp

from kubemend.agent.doctor.checks import Check, Result
from kubemend.common.components import ComponentState, ComponentStatus

NAME = "agent"

_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - addresses that an agent may listen on
_NOT_OURS = "pass another address with --metrics-address, or stop the process that listens there"


async def ready(address: tuple[str, int]) -> Sequence[Check]:
    """Query the agent's /readyz. A missing agent is not a fault: doctor also runs before the agent is installed."""
    given, port = address
    host = _ANYWHERE.get(given, given)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    try:
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
            parts = _parts(await answer.read())
    except aiohttp.ClientConnectorError:
        return (Check(NAME, Result.NOT_NEEDED, f"no agent listens at {host}:{port}"),)
    except (aiohttp.ClientError, ValueError):
        return (Check(NAME, Result.FAIL, f"the process that listens at {host}:{port} is not an agent", _NOT_OURS),)
    return (parts_check(parts),)


def parts_check(parts: Mapping[str, ComponentStatus]) -> Check:
    """Return the check for the components of a running agent."""
    degraded = {name: part for name, part in parts.items() if part.state is ComponentState.DEGRADED}
    if degraded:
        what = "; ".join(f"{name}: {part.message}" for name, part in degraded.items())
        hint = "; ".join(dict.fromkeys(part.hint for part in degraded.values()))
        return Check(NAME, Result.FAIL, f"it runs, but {what}", hint)
    starting = [name for name, part in parts.items() if part.state is ComponentState.STARTING]
    if starting:
        return Check(NAME, Result.WARN, f"it runs, and is still starting: {', '.join(starting)}", "run doctor again")
    return Check(NAME, Result.OK, f"it runs and is ready: {', '.join(parts)}")


def _parts(body: bytes) -> Mapping[str, ComponentStatus]:
    """Parse the body of /readyz (``common.web``). Raises ValueError when it is something else."""
    try:
        items = json.loads(body)["parts"].items()
        return {
            name: ComponentStatus(ComponentState(part["state"]), part["message"], part["hint"]) for name, part in items
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not the parts of an agent") from error
