"""Check kubemend's own services: the controller's hub, and the agent that runs on this node."""

import asyncio
import functools
import json
import ssl
from collections.abc import Mapping, Sequence

import aiohttp

from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.hub import endpoint
from kubemend.agent.hub.endpoint import Address, HubEndpoint
from kubemend.agent.hub.errors import RUNNING, HubError
from kubemend.agent.settings import Settings
from kubemend.common import blocking
from kubemend.common.components import ComponentState, ComponentStatus

HUB = "hub"
DROPPED = "check whether a network policy or firewall drops traffic to it"

_CA_HINT = "mount the CA that the controller publishes (ConfigMap kubemend-hub-ca), and check --hub-ca and --hub-name"


async def hub(settings: Settings) -> Sequence[Check]:
    """Check whether the hub is reachable.

    Only TLS is tested: whether it accepts the token is reported by the running agent.
    """
    if not settings.hub:
        return (Check(HUB, Result.NOT_NEEDED, "no hub is configured: gangs are not restarted together"),)
    where = HubEndpoint(
        addresses=settings.hub_addresses(), name=settings.hub_name, ca=settings.hub_ca, token=settings.hub_token
    )
    try:
        await blocking.once(functools.partial(endpoint.token, where), name="doctor")
        roots = await blocking.once(functools.partial(endpoint.roots_of, where), name="doctor")
        addresses = await blocking.once(functools.partial(endpoint.resolved, where), name="doctor")
    except HubError as error:
        return (Check(HUB, Result.FAIL, error.problem.what, error.problem.hint),)
    try:
        context = _context(roots)
    except ssl.SSLError:
        return (Check(HUB, Result.FAIL, f"{where.ca} contains no certificate", _CA_HINT),)
    each = (_handshake_fault(address, context=context, name=where.name) for address in addresses)
    faults = await asyncio.gather(*each)  # at once: the first one may be on a node that is down, and never answer
    return (_hub_check(addresses, faults),)


def _hub_check(addresses: Sequence[Address], faults: Sequence[tuple[str, str] | None]) -> Check:
    """Summarize the results. One reachable replica is enough, because any of them can lead."""
    found = [fault for fault in faults if fault is not None]
    what, hint = ("; ".join(dict.fromkeys(each)) for each in zip(*found, strict=True)) if found else ("", "")
    if len(found) == len(addresses):
        return Check(HUB, Result.FAIL, what, hint)
    proven = ", ".join(str(address) for address, fault in zip(addresses, faults, strict=True) if fault is None)
    if found:
        return Check(HUB, Result.WARN, f"the hub answers at {proven}, but {what}", hint)
    return Check(HUB, Result.OK, f"the hub answers at {proven}, with a certificate issued by its CA")


async def _handshake_fault(address: Address, *, context: ssl.SSLContext, name: str) -> tuple[str, str] | None:
    """Perform a TLS handshake; return the problem and the hint, None if there is none."""
    try:
        async with asyncio.timeout(endpoint.CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of the hub at {address} is not valid for {name}: {error.verify_message}", _CA_HINT
    except ssl.SSLError as error:
        return f"the server at {address} does not use the hub's TLS protocol ({error.reason})", "see --hub"
    except TimeoutError:
        return f"no answer within {endpoint.CONNECT_SECONDS:g} s from the hub at {address}", DROPPED
    except OSError as error:
        return f"no hub answers at {address}: {error.strerror or error}", RUNNING
    writer.transport.abort()
    return None


def _context(roots: bytes) -> ssl.SSLContext:
    """Return the TLS context that verifies the hub's certificate. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=roots.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    return context


AGENT = "agent"

_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - addresses that an agent may listen on
_NOT_OURS = "pass another address with --metrics-address, or stop the process that listens there"


async def running_agent(address: tuple[str, int]) -> Sequence[Check]:
    """Query the agent's /readyz. A missing agent is not a fault: doctor also runs before the agent is installed."""
    given, port = address
    host = _ANYWHERE.get(given, given)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    try:
        async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
            parts = _parts(await answer.read())
    except aiohttp.ClientConnectorError:
        return (Check(AGENT, Result.NOT_NEEDED, f"no agent listens at {host}:{port}"),)
    except (aiohttp.ClientError, ValueError):
        return (Check(AGENT, Result.FAIL, f"the process that listens at {host}:{port} is not an agent", _NOT_OURS),)
    return (parts_check(parts),)


def parts_check(parts: Mapping[str, ComponentStatus]) -> Check:
    """Return the check for the components of a running agent."""
    degraded = {name: part for name, part in parts.items() if part.state is ComponentState.DEGRADED}
    if degraded:
        what = "; ".join(f"{name}: {part.message}" for name, part in degraded.items())
        hint = "; ".join(dict.fromkeys(part.hint for part in degraded.values()))
        return Check(AGENT, Result.FAIL, f"it runs, but {what}", hint)
    starting = [name for name, part in parts.items() if part.state is ComponentState.STARTING]
    if starting:
        return Check(AGENT, Result.WARN, f"it runs, and is still starting: {', '.join(starting)}", "run doctor again")
    return Check(AGENT, Result.OK, f"it runs and is ready: {', '.join(parts)}")


def _parts(body: bytes) -> Mapping[str, ComponentStatus]:
    """Parse the body of /readyz (``common.web``). Raises ValueError when it is something else."""
    try:
        items = json.loads(body)["parts"].items()
        return {
            name: ComponentStatus(ComponentState(part["state"]), part["message"], part["hint"]) for name, part in items
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not the parts of an agent") from error
