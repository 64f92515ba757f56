"""The hub as a part of the controller: its port, its limits, and who watches over living streams."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
import structlog

from common import aio, contained, settings
from controller.hub import streams
from controller.hub.front import Front
from controller.hub.ports import Session
from controller.hub.service import Coordination
from controller.model.members import NodeName, PodUid

log = structlog.get_logger(__name__)

_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""What gRPC itself refuses, uncounted; ``messages.Limits`` refuses sooner, and counts."""

_LOOKS: Final = 8
"""So often in a row a write must be found unfinished before its reader counts as too slow."""

_STRANGERS_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Where to listen, and how long what hangs is waited for, in seconds.

    A peer that answers no ping is given up after ``ping_seconds`` twice; an agent that does not take one message
    within ``write_seconds`` is too slow.
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
            # Small messages need no measured window, and each measurement costs a ping both ways: a fifth of a
            # round's time with 5000 agents.
            ("grpc.http2.bdp_probe", 0),
            # How much gRPC takes from us for an agent that does not read; the rest waits where it is counted.
            ("grpc.http2.write_buffer_size", 4 * 1024),
        ]


class Hub:
    """Serves the agents. Make it inside a running event loop; ``start`` it, and ``run`` it in the TaskGroup.

    It refuses all agents until it is told to ``lead``.
    """

    def __init__(self, service: Coordination, *, options: HubOptions | None = None) -> None:
        self._service = service
        self._options = options or HubOptions()
        self._front = Front(service.visitors)
        arguments = self._options.channel_arguments(connections=service.visitors.caps.connections)
        self._server = grpc.aio.server(options=arguments)
        self._server.add_generic_rpc_handlers((service.handler(),))

    async def start(self, credentials: grpc.ServerCredentials) -> int:
        """Begin to serve; return the TCP port. Raises RuntimeError when it cannot listen there."""
        self._server.add_secure_port(self._front.behind, credentials)
        await self._server.start()
        port = await self._front.start(*settings.host_and_port(self._options.address))
        log.info("hub.listening", address=self._options.address, port=port)
        return port

    def lead(self, epoch: int) -> None:
        """Take agents in; said again with a higher epoch, it is put on all that is sent from then on."""
        self._service.lead(epoch)

    def stand_by(self) -> None:
        """End all sessions, and refuse agents."""
        self._service.stand_by()

    def sessions(self) -> Mapping[NodeName, Session]:
        """Return who is connected, as it is now."""
        return self._service.roster.streams

    def pod_bound(self, uid: PodUid, node: NodeName) -> None:
        """A pod is known to be bound to a node now: its agent may have spoken of it before."""
        self._service.pod_bound(uid, node)

    async def run(self) -> None:
        """Watch over the streams, for ever. Raises what made the server end."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._drop_stuck(), name="hub-stuck")
            aio.spawn_eternal(group, self._review(), name="hub-review")
            aio.spawn_eternal(group, self._until_ended(), name="hub-server")
            aio.spawn_eternal(group, self._end_silent(), name="hub-strangers")

    async def stop(self, *, grace: float = 1.0) -> None:
        """End all sessions, and the server after ``grace`` seconds at most."""
        self._service.stand_by()
        await self._server.stop(grace)
        await self._front.stop()

    async def _until_ended(self) -> None:
        """Wait for the server's end. With a timeout: without one, to cancel this would break ``stop`` (grpc.aio)."""
        while await self._server.wait_for_termination(timeout=3600.0):
            pass

    async def _end_silent(self) -> None:
        """End connections on which nobody says who he is."""
        async for _ in aio.ticks(period=_STRANGERS_SECONDS):
            self._service.visitors.end_silent()

    async def _drop_stuck(self) -> None:
        """Drop agents that do not read what is written to them."""
        async for _ in aio.ticks(period=self._options.write_seconds / _LOOKS):
            for stream in [*self._service.roster.streams.values()]:
                if stream.unmoved() > _LOOKS:
                    log.warning("hub.slow_reader", node=stream.node)
                    self._service.roster.end(stream, streams.TOO_SLOW)

    async def _review(self) -> None:
        """Have the tokens of living streams checked when it is time, a few at once."""
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
