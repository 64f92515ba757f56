"""The hub as a component of the controller: its port, its limits, and the checks of living streams."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
import structlog

from kubemend.common import aio, contained, settings
from kubemend.controller.hub import streams
from kubemend.controller.hub.listener import Front
from kubemend.controller.hub.ports import Session
from kubemend.controller.hub.service import Coordination
from kubemend.controller.model.members import NodeName, PodUid

log = structlog.get_logger(__name__)

_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The size that gRPC itself refuses, uncounted; ``messages.Limits`` refuses smaller ones, and counts."""

_CHECKS: Final = 8
"""Consecutive checks that must find the same write unfinished before its reader counts as too slow."""

_STRANGERS_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Address and timeouts in seconds.

    A peer that answers no ping is dropped after twice ``ping_seconds``. An agent that does not take one message within
    ``write_seconds`` is too slow.
    """

    address: str = "[::]:8443"
    ping_seconds: float = 10.0
    handshake_seconds: float = 10.0
    idle_seconds: float = 30.0
    write_seconds: float = 10.0
    reviews_at_once: int = 8

    def channel_arguments(self, *, connections: int) -> list[tuple[str, int]]:
        """Return gRPC's settings for these (include/grpc/impl/channel_arg_names.h)."""
        return [
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MESSAGE_BYTES),
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.max_concurrent_streams", 2),
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server_handshake_timeout_ms", round(self.handshake_seconds * 1000)),
            ("grpc.max_connection_idle_ms", round(self.idle_seconds * 1000)),
            ("grpc.keepalive_time_ms", round(self.ping_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.ping_seconds * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", round(self.ping_seconds * 500)),
            # Small messages need no measured window. Each measurement costs a ping both ways: a fifth of a round's time
            # with 5000 agents.
            ("grpc.http2.bdp_probe", 0),
            # How much gRPC buffers for an agent that does not read; the rest waits in the hub's own queue, where it is
            # counted.
            ("grpc.http2.write_buffer_size", 4 * 1024),
        ]


class Hub:
    """Serve the agents. Create it inside a running event loop; ``start`` it, and ``run`` it in the TaskGroup.

    It refuses all agents until ``lead`` is called.
    """

    def __init__(self, service: Coordination, *, options: HubOptions | None = None) -> None:
        self._service = service
        self._options = options or HubOptions()
        self._front = Front(service.visitors)
        arguments = self._options.channel_arguments(connections=service.visitors.caps.connections)
        self._server = grpc.aio.server(options=arguments)
        self._server.add_generic_rpc_handlers((service.handler(),))

    async def start(self, credentials: grpc.ServerCredentials) -> int:
        """Begin to serve; return the TCP port. Raises ListenError if it cannot listen there."""
        self._server.add_secure_port(self._front.behind, credentials)
        await self._server.start()
        port = await self._front.start(*settings.host_and_port(self._options.address))
        log.info("hub.listening", address=self._options.address, port=port)
        return port

    def lead(self, epoch: int) -> None:
        """Accept agents. A later call with a higher epoch applies to everything sent from then on."""
        self._service.lead(epoch)

    def stand_by(self) -> None:
        """End all sessions, and refuse agents."""
        self._service.stand_by()

    def sessions(self) -> Mapping[NodeName, Session]:
        """Return the current sessions by node."""
        return self._service.roster.streams

    def pod_bound(self, uid: PodUid, node: NodeName) -> None:
        """Process earlier messages about a pod, now that it is known to be bound to a node."""
        self._service.pod_bound(uid, node)

    async def run(self) -> None:
        """Check the streams indefinitely. Raises the error that ended the server."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._drop_slow_readers(), name="hub-stuck")
            aio.spawn_eternal(group, self._review(), name="hub-review")
            aio.spawn_eternal(group, self._until_ended(), name="hub-server")
            aio.spawn_eternal(group, self._end_silent(), name="hub-unauthenticated")

    async def stop(self, *, grace: float = 1.0) -> None:
        """End all sessions, and the server after ``grace`` seconds at most."""
        self._service.stand_by()
        await self._server.stop(grace)
        await self._front.stop()

    async def _until_ended(self) -> None:
        """Wait for the server's end.

        With a timeout, because cancelling a wait without one breaks ``stop`` (grpc.aio).
        """
        while await self._server.wait_for_termination(timeout=3600.0):
            pass

    async def _end_silent(self) -> None:
        """End connections that are not authenticated in time."""
        async for _ in aio.ticks(period=_STRANGERS_SECONDS):
            self._service.visitors.end_silent()

    async def _drop_slow_readers(self) -> None:
        """Drop agents that do not read their messages."""
        async for _ in aio.ticks(period=self._options.write_seconds / _CHECKS):
            for stream in [*self._service.roster.streams.values()]:
                if stream.unmoved() > _CHECKS:
                    log.warning("hub.reader_too_slow", node=stream.node)
                    self._service.roster.end(stream, streams.TOO_SLOW)

    async def _review(self) -> None:
        """Review the tokens of living streams when due, a few at a time."""
        at_once = asyncio.Semaphore(self._options.reviews_at_once)

        async for _ in aio.ticks(period=1.0):
            now = time.monotonic()
            due = [stream for stream in self._service.roster.streams.values() if stream.review_at <= now]
            async with asyncio.TaskGroup() as group:
                for stream in due:
                    group.create_task(self._review_one(stream, at_once), name="hub-review-one")

    async def _review_one(self, stream: streams.Stream, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            with contained.within(contained.Part.STREAM, stream.node):
                await self._service.review(stream)
