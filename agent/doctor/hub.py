"""The controller's hub: is its name known, does it prove who it is, and is there a token for it."""

import asyncio
import functools
import ssl
from collections.abc import Sequence

from agent.coordination import dialing
from agent.coordination.dialing import Address, Where
from agent.coordination.troubles import RUNNING, TroubleError
from agent.doctor.checks import Check, Result
from agent.settings import Settings
from common import own_thread

NAME = "hub"

_CA_MEND = "mount the CA that the controller publishes (ConfigMap kubemend-hub-ca), and see --hub-ca and --hub-name"


async def reachable(settings: Settings) -> Sequence[Check]:
    """Say whether the hub can be reached. Only TLS is spoken: whether it takes the token, the agent's own part says."""
    if not settings.hub:
        return (Check(NAME, Result.NOT_NEEDED, "no hub is set: gangs are not restarted together"),)
    where = Where(
        addresses=settings.hub_addresses(), name=settings.hub_name, ca=settings.hub_ca, token=settings.hub_token
    )
    try:
        await own_thread.once(functools.partial(dialing.token, where), name="doctor")
        roots = await own_thread.once(functools.partial(dialing.roots_of, where), name="doctor")
        addresses = await own_thread.once(functools.partial(dialing.resolved, where), name="doctor")
    except TroubleError as error:
        return (Check(NAME, Result.FAIL, error.trouble.what, error.trouble.mend),)
    try:
        context = _context(roots)
    except ssl.SSLError:
        return (Check(NAME, Result.FAIL, f"{where.ca} holds no certificate", _CA_MEND),)
    faults = [await _fault(address, context=context, name=where.name) for address in addresses]
    return (_check(addresses, faults),)


def _check(addresses: Sequence[Address], faults: Sequence[tuple[str, str] | None]) -> Check:
    """Say what was found. One replica is enough, for any of them can lead."""
    found = [fault for fault in faults if fault is not None]
    what, mend = ("; ".join(dict.fromkeys(each)) for each in zip(*found, strict=True)) if found else ("", "")
    if len(found) == len(addresses):
        return Check(NAME, Result.FAIL, what, mend)
    proven = ", ".join(str(address) for address, fault in zip(addresses, faults, strict=True) if fault is None)
    if found:
        return Check(NAME, Result.WARN, f"the hub answers at {proven}, but {what}", mend)
    return Check(NAME, Result.OK, f"the hub answers at {proven}, with a certificate that its CA vouches for")


async def _fault(address: Address, *, context: ssl.SSLContext, name: str) -> tuple[str, str] | None:
    """Shake hands; return what is wrong and the mend, None where all is well."""
    try:
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    except ssl.SSLCertVerificationError as error:
        return f"the hub at {address} does not prove that it is {name}: {error.verify_message}", _CA_MEND
    except ssl.SSLError as error:
        return f"what answers at {address} does not speak TLS as the hub does ({error.reason})", "see --hub"
    except OSError as error:
        return f"no hub answers at {address}: {error.strerror or error}", RUNNING
    writer.transport.abort()
    return None


def _context(roots: bytes) -> ssl.SSLContext:
    """Return what the hub's certificate is checked by. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=roots.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    return context
