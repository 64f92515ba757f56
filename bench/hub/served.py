"""``python -m bench.hub.served STREAMS controller …``: the controller, whose hub also serves bare broadcasts.

``STREAMS`` is the number of streams that a connection may have.
"""

import sys
from typing import ClassVar
from unittest import mock

import grpc

from bench.hub.broadcast import Broadcast
from kubemend.cli import main
from kubemend.controller.app import controller
from kubemend.controller.hub import server


class _Options(server.HubOptions):
    """The hub's options, with room for more streams."""

    streams: ClassVar[int]

    def channel_arguments(self, *, connections: int) -> list[tuple[str, int]]:
        """Return gRPC's settings for these, with room for the streams of a connection."""
        arguments = dict(super().channel_arguments(connections=connections))
        return [*{**arguments, "grpc.max_concurrent_streams": self.streams}.items()]


class _Hub(server.Hub):
    """A hub that serves the broadcast, too."""

    async def start(self, credentials: grpc.ServerCredentials) -> int:
        """Begin to serve."""
        self._server.add_generic_rpc_handlers((Broadcast().handler(),))
        return await super().start(credentials)


if __name__ == "__main__":
    _Options.streams = int(sys.argv.pop(1))
    with mock.patch.object(controller, "Hub", _Hub), mock.patch.object(controller, "HubOptions", _Options):
        main(prog_name="kubemend")
