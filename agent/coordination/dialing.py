"""From the settings to a connection: addresses, certificates and token, read anew each time, for they change."""

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio

from agent.coordination.troubles import Rank, Trouble, TroubleError
from common import grpcio, own_thread

_T = TypeVar("_T")

_CONNECT_SECONDS: Final = 5.0  # TCP and TLS together
_LOOK_SECONDS: Final = 10.0
_PING_SECONDS: Final = 10.0
_PONG_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Where:
    """Where the hub is (hosts and ports), what its certificate is made out to, and by what each knows the other."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    ca: Path
    token: Path


@dataclass(frozen=True, slots=True)
class Address:
    """One address, resolved."""

    family: socket.AddressFamily
    host: str
    port: int

    @property
    def target(self) -> str:
        """Return it in gRPC's words."""
        return f"{'ipv6' if self.family is socket.AF_INET6 else 'ipv4'}:{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family is socket.AF_INET6 else f"{self.host}:{self.port}"


class Dialer:
    """Looks up and reads in a thread of its own: neither a resolver nor a file system may hold up the agent."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._thread = own_thread.OwnThread("hub")

    def close(self) -> None:
        """Let the thread end."""
        self._thread.close()

    async def addresses(self) -> tuple[Address, ...]:
        """Resolve what was given. Raises TroubleError when there is not one address."""
        return await self._call(functools.partial(resolved, self._where))

    async def token(self) -> str:
        """Read the token. Raises TroubleError."""
        return await self._call(functools.partial(token, self._where))

    async def channel(self, address: Address) -> grpc.aio.Channel:
        """Return a channel on which nothing is connected yet. Raises TroubleError."""
        roots = await self._call(functools.partial(roots_of, self._where))
        credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        return grpc.aio.secure_channel(address.target, credentials, options=_options(name=self._where.name))

    async def _call(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._thread.call(work, timeout=_LOOK_SECONDS)
        except TimeoutError:
            names = ", ".join(host for host, _ in self._where.addresses)
            what = f"looking up {names}, or reading {self._where.ca} and {self._where.token}, takes for ever"
            raise TroubleError(Trouble(what, "see whether the resolver and the file system answer")) from None


def resolved(where: Where) -> tuple[Address, ...]:
    """Return every address of the hosts, each once, in the order given. Blocks. Raises TroubleError."""
    found: dict[Address, None] = {}
    faults = []
    for host, port in where.addresses:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            faults.append(f"{host}: {error.strerror or error}")
            continue
        known = (each for each in answers if each[0] in (socket.AF_INET, socket.AF_INET6))
        found |= {Address(family, str(at[0]), port): None for family, _, _, _, at in known}
    if not found:
        mend = "see whether the Service exists, and whether this pod's dnsPolicy is ClusterFirstWithHostNet"
        raise TroubleError(Trouble(f"the hub's name is not known: {'; '.join(faults)}", mend))
    return tuple(found)


def token(where: Where) -> str:
    """Return the agent's token. Blocks. Raises TroubleError."""
    mend = "mount a projected token for the audience kubemend-hub, and set --hub-token"
    return _read(where.token, what="the agent's token for the hub", mend=mend).decode("ascii", "replace").strip()


def roots_of(where: Where) -> bytes:
    """Return the certificates that vouch for the hub, PEM. Blocks. Raises TroubleError."""
    return _read(where.ca, what="the hub's CA", mend="mount the ConfigMap kubemend-hub-ca, and set --hub-ca")


def _read(path: Path, *, what: str, mend: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TroubleError(Trouble(f"{what} cannot be read: {path}: {error.strerror}", mend, Rank.REFUSED)) from error
    if not content.strip():
        raise TroubleError(Trouble(f"{what} is empty: {path}", mend, Rank.REFUSED))
    return content


def _options(*, name: str) -> list[tuple[str, str | int]]:
    return [
        ("grpc.ssl_target_name_override", name),
        ("grpc.default_authority", name),
        ("grpc.enable_http_proxy", 0),  # proxies in the environment are for the way out of the cluster
        ("grpc.max_receive_message_length", grpcio.MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", grpcio.MAX_MESSAGE_BYTES),
        # Despite its name this one is the time that a connection may take to be made.
        ("grpc.min_reconnect_backoff_ms", int(_CONNECT_SECONDS * 1000)),
        ("grpc.enable_retries", 0),
        # A node that is cut off does not close its connections: ask whether anybody is there.
        ("grpc.keepalive_time_ms", int(_PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(_PONG_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
