"""Resolve the hub's addresses and read certificates and token, again for each connection, because they change."""

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio

from kubemend.agent.hub.errors import HubError, HubProblem, Severity
from kubemend.common import blocking, grpcio

_T = TypeVar("_T")

CONNECT_SECONDS: Final = 5.0
"""Timeout for making a connection: TCP and TLS together."""
_LOOK_SECONDS: Final = 10.0
_PING_SECONDS: Final = 10.0
_PONG_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The hub's hosts and ports, the name in its certificate, and the files of its CA and the agent's token."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    ca: Path
    token: Path


@dataclass(frozen=True, slots=True)
class Address:
    """One resolved address."""

    family: socket.AddressFamily
    host: str
    port: int

    @property
    def target(self) -> str:
        """Return it in gRPC's syntax."""
        return f"{'ipv6' if self.family is socket.AF_INET6 else 'ipv4'}:{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family is socket.AF_INET6 else f"{self.host}:{self.port}"


class Dialer:
    """Resolve and read in a separate thread, because a resolver or file system that hangs must not block the agent."""

    def __init__(self, where: HubEndpoint) -> None:
        self._where = where
        self._thread = blocking.DedicatedThread("hub")

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def addresses(self) -> tuple[Address, ...]:
        """Resolve the configured hosts. Raises HubError if there is no address."""
        return await self._call(functools.partial(resolved, self._where))

    async def token(self) -> str:
        """Read the token. Raises HubError."""
        return await self._call(functools.partial(token, self._where))

    async def channel(self, address: Address) -> grpc.aio.Channel:
        """Return a channel that is not connected yet. Raises HubError."""
        roots = await self._call(functools.partial(roots_of, self._where))
        credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        return grpc.aio.secure_channel(address.target, credentials, options=_options(name=self._where.name))

    async def _call(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._thread.call(work, timeout=_LOOK_SECONDS)
        except TimeoutError:
            names = ", ".join(host for host, _ in self._where.addresses)
            what = (
                f"no answer within {_LOOK_SECONDS:g} s from resolving {names}, or reading {self._where.ca} and "
                f"{self._where.token}"
            )
            raise HubError(HubProblem(what, "Check that the resolver and the file system answer.")) from None
        except OSError as error:
            hint = "Check the node's limits of threads and processes."
            raise HubError(HubProblem(f"cannot look for the hub: {error.strerror}", hint)) from error


def resolved(where: HubEndpoint) -> tuple[Address, ...]:
    """Return every address of the hosts, each once, in the configured order. Blocks. Raises HubError."""
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
        hint = "Check that the Service exists, and that this pod's dnsPolicy is ClusterFirstWithHostNet."
        raise HubError(HubProblem(f"cannot resolve the hub's name: {'; '.join(faults)}", hint))
    return tuple(found)


def token(where: HubEndpoint) -> str:
    """Return the agent's token. Blocks. Raises HubError."""
    hint = "Mount a projected token for the audience kubemend-hub, and set --hub-token."
    return _read(where.token, what="the agent's token for the hub", hint=hint).decode("ascii", "replace").strip()


def roots_of(where: HubEndpoint) -> bytes:
    """Return the hub's CA certificates, PEM. Blocks. Raises HubError."""
    return _read(where.ca, what="the hub's CA", hint="Mount the ConfigMap kubemend-hub-ca, and set --hub-ca.")


def _read(path: Path, *, what: str, hint: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HubError(HubProblem(f"cannot read {what}: {path}: {error.strerror}", hint, Severity.REFUSED)) from error
    if not content.strip():
        raise HubError(HubProblem(f"{what} is empty: {path}", hint, Severity.REFUSED))
    return content


def _options(*, name: str) -> list[tuple[str, str | int]]:
    return [
        ("grpc.ssl_target_name_override", name),
        ("grpc.default_authority", name),
        ("grpc.enable_http_proxy", 0),  # proxies in the environment are for traffic that leaves the cluster
        ("grpc.max_receive_message_length", grpcio.MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", grpcio.MAX_MESSAGE_BYTES),
        # Despite its name this option is the timeout for making a connection.
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.enable_retries", 0),
        # A node that is cut off does not close its connections: probe whether the peer is alive.
        ("grpc.keepalive_time_ms", int(_PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(_PONG_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
