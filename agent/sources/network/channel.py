"""A netlink socket that is listened to for ever: opened again after every failure, and after every loss."""

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable

import structlog

from agent.sources.network.netlink import ListingError
from agent.sources.network.sockets import Listener, OverflowedError
from common import aio

log = structlog.get_logger(__name__)


class ChannelName(enum.Enum):
    """Of what a socket tells."""

    LINKS = "links"
    UEVENTS = "uevents"


class Channel:
    """Keeps one socket open, and hands on what is heard."""

    def __init__(
        self,
        name: ChannelName,
        *,
        connect: Callable[[], Awaitable[Listener]],
        begin: Callable[[], Awaitable[None]],
        take: Callable[[bytes], None],
        deaf: Callable[[OSError | ListingError], None],
        overflowed: Callable[[], None],
    ) -> None:
        """Prepare the channel.

        ``connect`` opens a socket, and ``begin`` then looks at how things are, since only changes are told of; both
        raise OSError or ListingError where they cannot. ``take`` gets each message, ``deaf`` why none can be had now.
        ``overflowed`` is called when messages were lost, before all begins anew.
        """
        self._name = name
        self._connect = connect
        self._begin = begin
        self._take = take
        self._deaf = deaf
        self._overflowed = overflowed

    async def run(self) -> None:
        """Listen for ever. After a loss the socket is replaced: what waits in it is older than what was lost."""
        backoff = aio.Backoff(first=0.05, limit=10.0)
        while True:
            try:
                await self._listen(backoff)
            except OverflowedError:
                log.warning("network.overflowed", channel=self._name.value)
                self._overflowed()
            except (OSError, ListingError) as error:  # a TimeoutError is an OSError
                self._deaf(error)
            await backoff.wait()

    async def _listen(self, backoff: aio.Backoff) -> None:
        with contextlib.closing(await self._connect()) as listener:
            await self._begin()
            while True:
                await listener.wait()
                for message in listener.read():
                    self._take(message)
                backoff.reset()
                await asyncio.sleep(0)  # a flood must not starve the rest of the agent
