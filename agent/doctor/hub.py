"""Check the controller's hub: whether its name resolves, its certificate is valid, and the agent has a token."""

import asyncio
import functools
import ssl
from collections.abc import Sequence

from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.hub import endpoint
from kubemend.agent.hub.endpoint import Address, HubEndpoint
from kubemend.agent.hub.errors import RUNNING, HubError
from kubemend.agent.settings import Settings
from kubemend.common import blocking

NAME = "hub"

_CA_HINT = "mount the CA that the controller publishes (ConfigMap kubemend-hub-ca), and check --hub-ca and --hub-name"


async def reachable(settings: Settings) -> Sequence[Check]:
    """Check whether the hub is reachable.

    Only TLS is tested: whether it accepts the token is reported by the running agent.
    """
    if not settings.hub:
        return (Check(NAME, Result.NOT_NEEDED, "no hub is configured: gangs are not restarted together"),)
    where = HubEndpoint(
        addresses=settings.hub_addresses(), name=settings.hub_name, ca=settings.hub_ca, token=settings.hub_token
    )
    try:
        await blocking.once(functools.partial(endpoint.token, where), name="doctor")
        roots = await blocking.once(functools.partial(endpoint.roots_of, where), name="doctor")
        addresses = await blocking.once(functools.partial(endpoint.resolved, where), name="doctor")
    except HubError as error:
        return (Check(NAME, Result.FAIL, error.trouble.what, error.trouble.hint),)
    try:
        context = _context(roots)
    except ssl.SSLError:
        return (Check(NAME, Result.FAIL, f"{where.ca} contains no certificate", _CA_HINT),)
    faults = [await _fault(address, context=context, name=where.name) for address in addresses]
    return (_check(addresses, faults),)


def _check(addresses: Sequence[Address], faults: Sequence[tuple[str, str] | None]) -> Check:
    """Summarize the results. One reachable replica is enough, because any of them can lead."""
    found = [fault for fault in faults if fault is not None]
    what, hint = ("; ".join(dict.fromkeys(each)) for each in zip(*found, strict=True)) if found else ("", "")
    if len(found) == len(addresses):
        return Check(NAME, Result.FAIL, what, hint)
    proven = ", ".join(str(address) for address, fault in zip(addresses, faults, strict=True) if fault is None)
    if found:
        return Check(NAME, Result.WARN, f"the hub answers at {proven}, but {what}", hint)
    return Check(NAME, Result.OK, f"the hub answers at {proven}, with a certificate issued by its CA")


async def _fault(address: Address, *, context: ssl.SSLContext, name: str) -> tuple[str, str] | None:
    """Perform a TLS handshake; return the problem and the hint, None if there is none."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of the hub at {address} is not valid for {name}: {error.verify_message}", _CA_HINT
    except ssl.SSLError as error:
        return f"the server at {address} does not use the hub's TLS protocol ({error.reason})", "see --hub"
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
